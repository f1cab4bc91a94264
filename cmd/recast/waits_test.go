package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
)

// slowRegistry is a registry behind a proxy that holds the list of official extensions
// back until it is released.
type slowRegistry struct {
	mu   sync.Mutex
	held chan struct{} // closed: the list is answered
}

// keepsBack holds the list back until the returned function is called.
func (r *slowRegistry) keepsBack() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := make(chan struct{})
	r.held = held
	return sync.OnceFunc(func() { close(held) })
}

func (r *slowRegistry) before(w http.ResponseWriter, req *http.Request, answer http.Handler) {
	if strings.Contains(req.URL.Path, "/siderolabs/extensions/manifests/") {
		r.mu.Lock()
		held := r.held
		r.mu.Unlock()
		select {
		case <-held:
		case <-req.Context().Done():
			return
		}
	}
	answer.ServeHTTP(w, req)
}

// slowly puts a slow registry in front of the lab's registry.
func slowly(t *testing.T, term *terminal) *slowRegistry {
	t.Helper()
	m := regexp.MustCompile(`(?m)^  extensions: (\S+)/siderolabs$`).FindStringSubmatch(term.read("recast.yaml"))
	if m == nil {
		t.Fatalf("recast.yaml names no registry of extensions:\n%s", term.read("recast.yaml"))
	}
	quiet := log.New(io.Discard, "", 0) // it is asked by TLS first
	answer := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: m[1]})
	answer.ErrorLog = quiet
	r := &slowRegistry{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.before(w, req, answer) }))
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(s.Close)
	term.replace("recast.yaml", m[1]+"/siderolabs", strings.TrimPrefix(s.URL, "http://")+"/siderolabs")
	return r
}

// TestLockSaysWhatItWaitsFor: while a registry is slow, lock says what it waits for, on
// a terminal and in a pipe, separately from its answer.
func TestLockSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	term := openLab(t)
	registry := slowly(t, term)
	const looks, answer = "looking at the registry's list of official extensions for Talos v1.13.9", "recast.lock is up to date"

	release := registry.keepsBack()
	defer release() // before the server is closed, which waits for its requests
	story := must.Get(os.Create(filepath.Join(term.dir, "lock.err")))(t)
	defer story.Close()
	var out strings.Builder
	c := term.recast("lock", "--check")
	c.Stdout, c.Stderr = &out, story
	must.Do(t, c.Start())
	term.await("lock.err", looks+"\n")
	release()
	if err := c.Wait(); err != nil || out.String() != answer+"\n" {
		t.Errorf("in a pipe: %v, answer %q, story:\n%s", err, out.String(), term.read("lock.err"))
	}
	must.Equal(t, "how often it is said", 1, strings.Count(term.read("lock.err"), looks))

	release = registry.keepsBack()
	defer release()
	s := term.onScreen("lock", "--check")
	s.await(looks + "\r\n")
	if strings.Contains(s.seen(), answer) {
		t.Errorf("answered before the registry was:\n%s", s.seen())
	}
	release()
	must.Equal(t, "exit code", exitDone, s.end())
	if seen := s.seen(); !strings.HasSuffix(seen, answer+"\r\n") || strings.Count(seen, looks) != 1 {
		t.Errorf("on a terminal:\n%q", seen)
	}
}

// TestGitThatHangs: what git has started, such as ssh, may outlive it.
func TestGitThatHangs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\nsleep 20 &\nwait\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := askedGit(ctx, dir, "", "log"); err == nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
