// Package apidoctest checks the [Requests] of a test against Proxmox VE's API schema, if the environment names one.
package apidoctest

import (
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/recast-sh/recast/internal/sim/apidoc"
	"github.com/recast-sh/recast/internal/sim/record"
)

// Env is the variable with the schema's file name.
const Env = "TEST_APIDOC"

// load reads the file once for all tests of a package.
var load = sync.OnceValues(func() (*apidoc.Schema, error) {
	f, err := os.Open(os.Getenv(Env))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return apidoc.Load(f)
})

// Schema is the schema; without one it skips the test.
func Schema(t testing.TB) *apidoc.Schema {
	t.Helper()
	if os.Getenv(Env) == "" {
		t.Skipf("%s does not name the schema of Proxmox's API: make schema", Env)
	}
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Requests are those of a test. Nil has none.
type Requests struct {
	recorder *record.Recorder
	meant    []string
}

// Check looks, when the test ends, at all requests to Proxmox that were recorded, and fails the test for each that
// Proxmox refuses. It adds the requests and the violations to the figures of the run. Without a schema it does nothing.
//
// For clients other than recast only successful requests count: tests of the server itself
// send invalid requests, but what the server accepts must be valid, or it is too lenient.
func Check(t testing.TB, rec *record.Recorder) *Requests {
	t.Helper()
	if os.Getenv(Env) == "" {
		return nil
	}
	s, r := Schema(t), &Requests{recorder: rec}
	t.Cleanup(func() { r.check(t, s) })
	return r
}

// Wrong says that the test sends an invalid parameter on purpose: requests with only that violation are ignored.
func (r *Requests) Wrong(param string) {
	if r != nil {
		r.meant = append(r.meant, param)
	}
}

func (r *Requests) check(t testing.TB, s *apidoc.Schema) {
	requests, violations := 0, 0
	said := map[string]bool{}
	say := func(line string, as func(...any)) {
		if !said[line] {
			said[line] = true
			as(line)
		}
	}
	for _, c := range r.recorder.Calls() {
		if c.Proto != "proxmox" || c.Agent != "recast" && c.Status != http.StatusOK {
			continue
		}
		v := s.Check(c)
		if r.isMeant(v) {
			continue
		}
		requests++
		violations += len(v.Violations)
		for _, found := range v.Violations {
			say(found.String(), t.Error)
		}
		for _, what := range v.Unchecked {
			say("not checked: "+c.Method+" "+v.Template+": "+what, t.Log)
		}
	}
	t.Attr("sum:requests", strconv.Itoa(requests))
	t.Attr("sum:schema-violations", strconv.Itoa(violations))
}

func (r *Requests) isMeant(v apidoc.Verdict) bool {
	other := func(found apidoc.Violation) bool { return !slices.Contains(r.meant, found.Param) }
	return len(v.Violations) > 0 && !slices.ContainsFunc(v.Violations, other)
}
