"""The Dash app: frame, navigation, and which page an address means."""

from collections.abc import Iterable
from urllib.parse import unquote

from dash import Dash, Input, Output, State, dcc, html

from entrostat.dashboard import guard
from entrostat.dashboard.login import Login, visitor
from entrostat.dashboard.pages import compare, control, rules, run, runs, sql
from entrostat.wire.client import Client

_THEME = """
function(clicks) {
    const root = document.documentElement;
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    let theme = localStorage.getItem("entrostat-theme") || (dark ? "dark" : "light");
    if (clicks) {
        theme = theme === "dark" ? "light" : "dark";
        localStorage.setItem("entrostat-theme", theme);
    }
    root.setAttribute("data-theme", theme);
    return theme === "dark" ? "light" : "dark";
}
"""


def build_app(client: Client, url: str, hosts: Iterable[str] | None = None, login: Login | None = None) -> Dash:
    """The dashboard of the server behind ``client``.

    Args:
        client: its token is what a visitor may do; with ``login`` it sends that of who asks.
        url: what people are told when the server does not answer.
        hosts: see ``guard.install``.
        login: how visitors say who they are; None: whoever can open the dashboard may what ``client`` may.
    """
    app = Dash(
        "entrostat",
        title="entrostat",
        update_title=None,
        suppress_callback_exceptions=True,  # a page's elements exist only while it is open
        assets_folder=__file__.rsplit("/", 1)[0] + "/assets",
        serve_locally=True,
    )
    guard.install(app.server, hosts)
    if login is not None:
        login.install(app.server)
    app.layout = _frame
    for page in (runs, run, control, compare, rules, sql):
        page.register(app, client, url)
    app.clientside_callback(_THEME, Output("theme", "children"), Input("theme", "n_clicks"))

    @app.callback(Output("page", "children"), Input("url", "pathname"), State("url", "search"))
    def _page(pathname: str | None, search: str | None) -> html.Div:
        return page_of(pathname or "/", search or "")

    guard.tell(app.server, app.csp_hashes())
    return app


def page_of(pathname: str, search: str) -> html.Div:
    """The layout that an address means."""
    if pathname == "/":
        return runs.layout()
    if pathname.startswith("/run/") and pathname.endswith("/control"):
        return control.layout(unquote(pathname.removeprefix("/run/").removesuffix("/control")))
    if pathname.startswith("/run/") and len(pathname) > len("/run/"):
        return run.layout(unquote(pathname.removeprefix("/run/")), search)
    if pathname == "/compare":
        return compare.layout(search)
    if pathname == "/rules":
        return rules.layout(search)
    if pathname == "/sql":
        return sql.layout()
    return html.Div([html.H2("No such page"), dcc.Link("to the runs", href="/")], className="empty")


def _frame() -> html.Div:
    pages = (("runs", "/"), ("compare", "/compare"), ("rules", "/rules"), ("SQL", "/sql"))
    links = [dcc.Link(name, href=href) for name, href in pages]
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            html.Header(
                [
                    dcc.Link("entrostat", href="/", className="brand"),
                    html.Nav(links),
                    html.Button("dark", id="theme", n_clicks=0, className="quiet-button", title="dark or light"),
                    *_signed_in(),
                ]
            ),
            html.Main(id="page"),
        ]
    )


def _signed_in() -> list[html.Form]:
    """Who is signed in, and the way out."""
    person = visitor()
    if person is None:
        return []
    told = f"signed in as {person.name}: {', '.join(sorted(person.scopes))}"
    button = html.Button(f"sign out {person.name}", className="quiet-button", title=told)
    return [html.Form(button, action="/logout", method="post", id="logout")]
