/* The settings of answers: kept by this browser, sent with every question. */
import { all, find, on, recall, remember, sendWith, watch } from "./stream.js";

const KEPT = "triforce-settings-2";
const { first, presets, custom } = JSON.parse(document.getElementById("settings-first").textContent);

let settings = { ...first, ...recall(KEPT) };

// Of what depends on the model an own choice stays as long as the model has it.
function chosen(name) {
  const offered = all(`[data-setting="${name}"] :is(input, option)`).map((field) => field.value);
  const usual = find(`[data-setting="${name}"]`)?.dataset.usual ?? "";
  if (!offered.length || offered.includes(settings[name])) return settings[name];
  if (name === "method" && settings.method && settings.method !== "autoregressive") return offered.find((value) => value !== "autoregressive") ?? usual;
  return usual;
}

export const now = () => ({ ...settings, method: chosen("method"), thinking: chosen("thinking"), variant: chosen("variant") });

function preset() {
  const { temperature, top_p, top_k } = settings;
  const same = (one) => one.temperature === temperature && (temperature === 0 || (one.top_p === top_p && one.top_k === top_k));
  return Object.keys(presets).find((name) => same(presets[name])) ?? custom;
}

function show() {
  const values = { ...now(), preset: preset() };
  for (const place of all("[data-setting]")) {
    const value = String(values[place.dataset.setting] ?? "");
    for (const field of all("input, select", place)) {
      if (field.type === "radio") field.checked = field.value === value;
      else if (field !== document.activeElement) field.value = value;
    }
  }
}

function change({ type, value }, name) {
  const typed = type !== "number" ? value : value === "" ? null : Number(value);
  if (name === "preset" && value === custom) find("#advanced").open = true; // where its numbers are
  settings = { ...settings, ...(name === "preset" ? presets[value] : { [name]: typed }) };
  remember(KEPT, settings);
  show();
}

on("input", "[data-setting]", (place, event) => change(event.target, place.dataset.setting));
watch((changed) => (!changed.length || changed.some((name) => name.startsWith("setting:"))) && show());
sendWith(() => ({ settings: now() }));
