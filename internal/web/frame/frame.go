// Package frame holds what recast's sites in a browser share: the layout and the style of their pages, the check of
// who may read them, and the runbooks. It knows nothing about clusters.
package frame

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/recast-sh/recast/docs/runbooks"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/style"
	"github.com/russross/blackfriday/v2"
)

type Options struct {
	Name  string      // of the site
	Of    string      // what its pages show: "cluster prod"
	Ends  string      // what ends when the pages can't be reached any more: "recast ui"
	Where string      // the footer's words about who serves the pages
	Base  string      // the path of all pages, "/…/"
	Tabs  [][2]string // path and name of the pages that every page links to
	// Pages has pages/NAME.gohtml for each of Names, and pages/parts.gohtml with the parts that they share.
	Pages fs.FS
	Names []string
	// Hide removes secrets from foreign text.
	Hide func(string) string
}

type Frame struct {
	Options
	pages map[string]*template.Template
}

//go:embed pages
var files embed.FS

func New(o Options) (*Frame, error) {
	f := &Frame{Options: o, pages: map[string]*template.Template{}}
	layout, err := template.New("layout").Funcs(template.FuncMap{
		"base": func() string { return f.Base },
		"hide": o.Hide,
		"path": url.PathEscape,
	}).ParseFS(files, "pages/layout.gohtml")
	if err == nil {
		layout, err = layout.ParseFS(o.Pages, "pages/parts.gohtml")
	}
	if err != nil {
		return nil, fmt.Errorf("pages: %w", err)
	}
	return f, errors.Join(f.add(layout, files, "missing", "runbooks", "runbook"), f.add(layout, o.Pages, o.Names...))
}

func (f *Frame) add(layout *template.Template, from fs.FS, names ...string) error {
	for _, name := range names {
		page, err := layout.Clone()
		if err == nil {
			page, err = page.ParseFS(from, "pages/"+name+".gohtml")
		}
		if err != nil {
			return fmt.Errorf("pages: %w", err)
		}
		f.pages[name] = page
	}
	return nil
}

type View struct {
	Title string // the name of a tab: the page is that tab
	Again int    // seconds after which a browser without scripts loads the page again; 0: never
	Body  any
	Frame *Frame // set by Render
}

// Render answers with a whole page, or with an error and no part of the page.
func (f *Frame) Render(w http.ResponseWriter, status int, name string, v View) {
	v.Frame = f
	var page bytes.Buffer
	if err := f.pages[name].ExecuteTemplate(&page, "layout", v); err != nil {
		http.Error(w, f.Hide("this page can't be drawn: "+err.Error()), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, foreign.Lines(page.String())) // the browser has gone away otherwise
}

func (f *Frame) Missing(w http.ResponseWriter, why string) {
	f.Render(w, http.StatusNotFound, "missing", View{Title: "Not found", Body: why})
}

// Handle adds what every site has: runbooks, style, script, and an answer for unknown pages.
func (f *Frame) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /runbooks", f.runbooksPage)
	mux.HandleFunc("GET /runbooks/{code}", f.runbookPage)
	mux.HandleFunc("GET /style.css", f.style)
	mux.HandleFunc("GET /live.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "pages/live.js") })
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { f.Missing(w, "there is no such page") })
}

// style serves the style of reports, and what pages add to it.
func (f *Frame) style(w http.ResponseWriter, _ *http.Request) {
	own, err := files.ReadFile("pages/site.css")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	_, _ = w.Write(append([]byte(style.CSS), own...)) // the browser has gone away otherwise
}

// Serve answers on l until ctx ends.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // nothing is lost with a page
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pages: %w", err)
	}
	return nil
}

// Local reads an address to listen on. It accepts only 127.0.0.1, which other machines can't reach: the pages are not
// encrypted.
func Local(text string) (netip.AddrPort, error) {
	address, err := netip.ParseAddrPort(text)
	if err == nil && address.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) {
		return address, nil
	}
	return address, fmt.Errorf("%q: write 127.0.0.1:PORT, since the pages show whole clusters and are not encrypted", text)
}

// Guard lets only requests through whose Host header names this machine: a page of another site whose name was made
// to resolve to 127.0.0.1 (DNS rebinding) sends that site's name. With port "", Guard accepts any port: kubectl
// port-forward may listen on another port than the pages.
func Guard(port string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Referrer-Policy", "same-origin") // no-referrer would take the Origin from forms
		h.Set("Cache-Control", "no-store")
		if name, at, err := net.SplitHostPort(r.Host); err == nil && (name == "127.0.0.1" || name == "localhost") && (at == port || port == "") {
			next.ServeHTTP(w, r)
			return
		}
		Refuse(w, "the address of these pages begins with http://127.0.0.1:"+port+" or http://localhost:"+port)
	})
}

const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// Refuse answers to a request that is not allowed.
func Refuse(w http.ResponseWriter, why string) { http.Error(w, "refused: "+why, http.StatusForbidden) }

type runbook struct{ Code, Title string }

func (f *Frame) runbooksPage(w http.ResponseWriter, _ *http.Request) {
	var list []runbook
	for _, code := range fault.AllCodes() {
		list = append(list, runbook{string(code), runbooks.Title(string(code))})
	}
	f.Render(w, http.StatusOK, "runbooks", View{Title: "Runbooks", Body: list})
}

func (f *Frame) runbookPage(w http.ResponseWriter, r *http.Request) {
	code := r.PathValue("code")
	text, found := runbooks.Page(code)
	if !found {
		f.Missing(w, "there is no such runbook")
		return
	}
	heading, text, _ := strings.Cut(text, "\n")
	f.Render(w, http.StatusOK, "runbook", View{Title: strings.TrimPrefix(heading, "# "), Body: markdown(text)})
}

// markdown renders a page that is built in. Its links to other runbooks stay on this site; its links to the rest of
// the documentation lead to where that is published.
func markdown(text string) template.HTML {
	html := blackfriday.NewHTMLRenderer(blackfriday.HTMLRendererParameters{Flags: blackfriday.SkipHTML})
	tree := blackfriday.New(blackfriday.WithExtensions(blackfriday.CommonExtensions)).Parse([]byte(text))
	var out strings.Builder
	tree.Walk(func(n *blackfriday.Node, entering bool) blackfriday.WalkStatus {
		if n.Type == blackfriday.Link && entering {
			n.Destination = []byte(linked(string(n.Destination)))
		}
		return html.RenderNode(&out, n, entering)
	})
	return template.HTML(out.String()) //nolint:gosec // from a page that is built in
}

func linked(to string) string {
	name, _, _ := strings.Cut(to, "#")
	code, isPage := strings.CutSuffix(name, ".md")
	_, here := runbooks.Page(code)
	switch {
	case isPage && here:
		return code
	case name == "", strings.Contains(to, "://"):
		return to
	}
	return strings.TrimSuffix(runbooks.URL(""), ".md") + to
}
