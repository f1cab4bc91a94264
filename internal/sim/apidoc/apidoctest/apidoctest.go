// Package apidoctest holds the requests of a test against Proxmox VE's description
// of its own API, where the environment says where that is.
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

// Env names the file with the description.
const Env = "RECAST_APIDOC"

// load reads the file once for all tests of a package.
var load = sync.OnceValues(func() (*apidoc.Schema, error) {
	f, err := os.Open(os.Getenv(Env))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return apidoc.Load(f)
})

// Schema is the description; it skips a test that has none.
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

// Requests are those of a test. Nil is none.
type Requests struct {
	recorder *record.Recorder
	meant    []string
}

// Check looks, when the test ends, at all requests to Proxmox that were recorded,
// and fails the test for each that Proxmox refuses. It adds the requests and the
// violations to the figures of the run. Without a schema it does nothing.
//
// Of a client other than recast only what the server answered with success
// counts. Tests of the server itself ask for what is wrong to see it refused;
// what it takes must be right all the same, or the server is too lenient.
func Check(t testing.TB, rec *record.Recorder) *Requests {
	t.Helper()
	if os.Getenv(Env) == "" {
		return nil
	}
	s, r := Schema(t), &Requests{recorder: rec}
	t.Cleanup(func() { r.check(t, s) })
	return r
}

// Wrong says that the test sends a parameter on purpose that Proxmox refuses:
// requests with nothing else wrong are left out.
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
