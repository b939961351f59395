/* Gradio 6.31 leaves the clock of its loading screen running when the screen goes: sixty empty frames a second for as long
   as a page is open, beside a decoder that wants the processor. So a nameless callback that asks for its own next frame
   again and again is, after a while, called four times a second. */

const request = window.requestAnimationFrame.bind(window);
const LONG = 300; // frames: five seconds, longer than any transition
const PAUSE = 250; // milliseconds
let running = null; // the callback that is being called, and how many frames it has had in a row

window.requestAnimationFrame = (callback) => {
  const again = running && !callback.name && running.callback.toString() === callback.toString();
  const frames = again ? running.frames + 1 : 1;
  const call = (time) => {
    running = { callback, frames };
    try {
      callback(time);
    } finally {
      running = null;
    }
  };
  if (frames < LONG) return request(call);
  setTimeout(() => request(call), PAUSE);
  return 0;
};
