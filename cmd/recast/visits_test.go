package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// pages are those of recast ui, as a browser that has opened its URL sees them.
type pages struct {
	base   string // http://127.0.0.1:1234/…/
	cookie *http.Cookie
}

// enterPages opens the URL that recast ui has printed.
func enterPages(text string) (pages, error) {
	first, err := url.Parse(strings.TrimSpace(text))
	if err != nil {
		return pages{}, err
	}
	answer, err := http.Get(first.String())
	if err != nil {
		return pages{}, err
	}
	defer answer.Body.Close()
	if len(answer.Cookies()) != 1 {
		return pages{}, fmt.Errorf("%s: %s, and no cookie", first, answer.Status)
	}
	c := answer.Cookies()[0]
	return pages{"http://" + first.Host + c.Path, c}, nil
}

func (p pages) ask(method, path string, form url.Values) (text string, err error) {
	r, err := http.NewRequest(method, p.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	r.AddCookie(p.cookie)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "http://"+r.Host)
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if answer.StatusCode >= http.StatusBadRequest {
		return string(body), fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, body)
	}
	return string(body), err
}

// visits FILE PATH TEXT… looks at a page of recast ui, whose URL is in a file, until it
// holds all texts.
func visits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: visits file path text…")
	}
	p, err := enterPages(ts.ReadFile(args[0]))
	ts.Check(err)
	var page, missing string
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) { // another process is waited for
		var err error
		page, err = p.ask(http.MethodGet, args[1], nil)
		ts.Check(err)
		missing = ""
		for _, text := range args[2:] {
			if !strings.Contains(page, text) {
				missing = text
			}
		}
		if missing == "" {
			return
		}
	}
	ts.Fatalf("the page %q never held %q:\n%s", args[1], missing, page)
}

// presses FILE WHAT presses the button of recast ui that reads something again.
func presses(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: presses file what")
	}
	p, err := enterPages(ts.ReadFile(args[0]))
	ts.Check(err)
	_, err = p.ask(http.MethodPost, "read", url.Values{"what": {args[1]}})
	ts.Check(err)
}
