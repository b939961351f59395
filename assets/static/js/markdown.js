/* Markdown of answers, by markdown-it with HTML off; links and images stand as they were written. Mathematics by KaTeX.
   What the server inserts stands at marks in the text, and nowhere else. */

const PLACE = /\ufdd0(\d+)\ufdd0/g; // as in app/markdown.py
const DELIMITERS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false]]; // no single dollars: books have prices
export const bare = (text) => text.replace(PLACE, "");

const md = globalThis.markdownit({ html: false, linkify: false, breaks: true }).disable(["link", "image", "autolink", "reference"]);

const formula = (tex, displayMode) => globalThis.katex.renderToString(bare(tex), { displayMode, output: "mathml", throwOnError: false });

md.inline.ruler.before("escape", "math", (state, silent) => {
  for (const [left, right, display] of DELIMITERS) {
    if (!state.src.startsWith(left, state.pos)) continue;
    const start = state.pos + left.length;
    const end = state.src.indexOf(right, start + 1);
    if (end < 0 || end >= state.posMax + right.length) continue;
    if (!silent) Object.assign(state.push("math", "math", 0), { content: state.src.slice(start, end), meta: display });
    state.pos = end + right.length;
    return true;
  }
  return false;
});
md.block.ruler.before("paragraph", "math", (state, first, last, silent) => {
  const at = state.bMarks[first] + state.tShift[first];
  const found = DELIMITERS.find(([left, , display]) => display && state.src.startsWith(left, at));
  if (!found) return false;
  const end = state.src.indexOf(found[1], at + found[0].length + 1);
  let line = first;
  while (line < last && state.eMarks[line] < end) line += 1;
  if (end < 0 || line >= last || state.src.slice(end + found[1].length, state.eMarks[line]).trim()) return false;
  if (silent) return true;
  Object.assign(state.push("math", "math", 0), { content: state.src.slice(at + found[0].length, end), meta: true });
  state.line = line + 1;
  return true;
}, { alt: ["paragraph"] });
md.renderer.rules.math = (tokens, at) => formula(tokens[at].content, tokens[at].meta);

// Marks within code and attributes are dropped: HTML may stand between words alone.
md.core.ruler.push("marks", ({ tokens }) => {
  const clean = (token) => {
    if (["code_inline", "code_block", "fence"].includes(token.type)) token.content = bare(token.content);
    if (token.info) token.info = bare(token.info);
    for (const attribute of token.attrs ?? []) attribute[1] = bare(attribute[1]);
    token.children?.forEach(clean);
  };
  tokens.forEach(clean);
});

export const html = (text, inserted = []) => md.render(text).replace(PLACE, (_, number) => inserted[number] ?? "");
