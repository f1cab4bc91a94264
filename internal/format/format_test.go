package format_test

import (
	"errors"
	"testing"

	"github.com/recast-sh/recast/internal/format"
	"github.com/recast-sh/recast/internal/sim/must"
)

type value struct {
	format.Version
	Node string `json:"node"`
}

func TestDecodeUpTo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		node, err string
		newer     bool
	}{
		`{"version":2,"node":"wk1"}`:                {node: "wk1"},
		`{"version":1,"node":"wk1"}`:                {node: "wk1"},
		`{"node":"wk1"}`:                            {"", "someone has edited it: it lacks its version", false},
		`{"version":-1,"node":"wk1"}`:               {"", "someone has edited it: it lacks its version", false},
		`{"version":3,"node":"wk1","new":1}`:        {"wk1", "a newer recast wrote it: its format is version 3, and this recast reads version 2", true},
		`{"version":3,"node":{"name":"wk1"}}`:       {"", "a newer recast wrote it: its format is version 3, and this recast reads version 2", true},
		`{"version":2,"node":"wk1","new":1}`:        {"wk1", `this recast does not know the field "new": a newer one wrote it, or it was edited`, false},
		`{"version":"two"}`:                         {"", "json: cannot unmarshal string into Go struct field Version.version of type int", false},
		`{"version":2,"node":"wk1"} {"node":"wk1"}`: {"", "invalid character '{' after top-level value", false},
		`{"version":2,"nod`:                         {"", "unexpected end of JSON input", false},
	} {
		var v value
		err := format.DecodeUpTo(2, []byte(text), &v)
		_, newer := errors.AsType[*format.NewerError](err)
		if got := must.Text(err); v.Node != want.node || got != want.err || newer != want.newer {
			t.Errorf("%s: node %q, newer %t, %q; want %+v", text, v.Node, newer, got, want)
		}
	}
}
