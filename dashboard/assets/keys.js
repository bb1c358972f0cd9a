// Ctrl+Enter (or Cmd+Enter) in the SQL editor runs the statement.
document.addEventListener("keydown", (event) => {
  const isRun = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (isRun && event.target && event.target.id === "sql-text") {
    event.preventDefault();
    event.target.blur(); // the editor hands its text over when it loses the focus
    setTimeout(() => document.getElementById("sql-run").click(), 50);
    setTimeout(() => document.getElementById("sql-text").focus(), 80);
  }
});
