/* The settings of answers: kept by this browser, sent with every question. */
"use strict";

(() => {
  const { all, find, on, recall, remember, watch } = window.triforcePage;
  const KEPT = "triforce-settings-2";
  const { names, first, presets, custom } = JSON.parse(document.getElementById("settings-first").textContent);

  delete first.method; // the model's usual one, until the reader chooses

  let settings = { ...first, ...recall(KEPT) };

  function put(changes) {
    settings = { ...settings, ...changes };
    remember(KEPT, settings);
  }

  // -------------------- Gradio's fields: the preset first, then those of `names`

  const sampled = ({ temperature, top_p, top_k }) => [temperature, top_p, top_k];

  function presetOf([temperature, topP, topK]) {
    const same = (one) => one[0] === temperature && (temperature === 0 || (one[1] === topP && one[2] === topK));
    return Object.keys(presets).find((name) => same(presets[name])) ?? custom;
  }

  const recalled = () => [presetOf(sampled(settings)), ...names.map((name) => settings[name])];
  const keep = ([, ...values]) => put(Object.fromEntries(values.map((value, at) => [names[at], names[at] === "seed" ? String(value ?? "") : value])));

  // -------------------- those that depend on the model: an own choice stays as long as the model has it

  const fieldsOf = (name) => all(`[data-setting="${name}"] :is(input, option)`);

  function chosen(name) {
    const offered = fieldsOf(name).map((field) => field.value);
    const usual = find(`[data-setting="${name}"]`)?.dataset.usual ?? "";
    if (!offered.length || offered.includes(settings[name])) return settings[name];
    if (name === "method" && settings.method && settings.method !== "autoregressive") return offered.find((value) => value !== "autoregressive") ?? usual;
    return usual;
  }

  function mark() {
    for (const name of ["method", "thinking", "variant"]) {
      const value = chosen(name);
      for (const field of fieldsOf(name)) field[field.type === "radio" ? "checked" : "selected"] = field.value === value;
    }
  }

  watch((changed) => changed.some((name) => name.startsWith("setting:")) && mark());
  on("change", "[data-setting]", (place, event) => put({ [place.dataset.setting]: event.target.value }));

  window.triforceSettings = {
    keep,
    preset: (name) => presets[name] ?? sampled(settings),
    presetOf,
    recalled,
    now: () => ({ ...settings, method: chosen("method"), thinking: chosen("thinking"), variant: chosen("variant") }),
  };
})();
