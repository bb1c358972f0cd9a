// The rules' editor hands its text over at every pause of typing, not only when it loses the focus.
let pause = null;
document.addEventListener("input", (event) => {
  if (event.target && event.target.id === "rules-text") {
    clearTimeout(pause);
    const text = event.target.value;
    pause = setTimeout(() => window.dash_clientside.set_props("rules-typed", { data: text }), 400);
  }
});
