// A session that is over: the page asks to sign in again, and comes back to where it was.
const asked = window.fetch;
window.fetch = async (...what) => {
  const answer = await asked(...what);
  if (answer.status === 401) {
    location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
  }
  return answer;
};
