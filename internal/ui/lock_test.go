package ui

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

func TestWriteLock(t *testing.T) {
	t.Parallel()
	changes := []pipeline.LockChange{
		{Change: schematics.Change{
			Schematic: "bgp", OldBuild: strings.Repeat("1", 64), NewBuild: strings.Repeat("2", 64),
			Reasons: []string{"extension frr 1.7.15: sha256:aa → sha256:bb"},
		}, Nodes: []string{"wk1", "wk2"}},
		{Change: schematics.Change{Schematic: "new", NewBuild: strings.Repeat("3", 64), Reasons: []string{"added"}}, Nodes: []string{"wk3"}},
		{Change: schematics.Change{Schematic: "unused", OldBuild: strings.Repeat("4", 64), NewBuild: strings.Repeat("5", 64), Reasons: []string{"unused.yaml changed"}}},
	}
	const moved = `schematic bgp: build 111111111111 → 222222222222
  extension frr 1.7.15: sha256:aa → sha256:bb
  makes stale: wk1, wk2
schematic new: build none → 333333333333
  added
schematic unused: build 444444444444 → 555555555555
  unused.yaml changed
`
	for name, tc := range map[string]struct {
		res  pipeline.LockResult
		want string
	}{
		"nothing":           {pipeline.LockResult{Newest: true}, "recast.lock is up to date\n"},
		"not looked for":    {pipeline.LockResult{}, "recast.lock is unchanged; recast lock --check looks for newer digests\n"},
		"written":           {pipeline.LockResult{Differs: true, Written: true, Changes: changes}, moved + "recast.lock written; next: recast plan\n"},
		"checked":           {pipeline.LockResult{Differs: true, Changes: changes}, moved + "recast.lock would change: recast lock --update\n"},
		"no build, written": {pipeline.LockResult{Differs: true, Written: true}, "recast.lock written: every build is the same as before\n"},
		"no build, checked": {pipeline.LockResult{Differs: true}, "recast.lock would change: recast lock --update\n"},
	} {
		var out bytes.Buffer
		if err := WriteLock(&out, "text", tc.res); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var out bytes.Buffer
	warning := schematics.Warning{Kind: schematics.TagMoved, Subject: "ghcr.io/acme/frr:1.7", Locked: "sha256:aa", Found: "sha256:bb", Text: "t", Hint: "h"}
	if err := WriteLock(&out, "json", pipeline.LockResult{Differs: true, Changes: changes[:1], Warnings: []schematics.Warning{warning}}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Differs, Written bool
		Changes          []struct {
			Schematic string
			Nodes     []string
		}
		Warnings []map[string]string
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := got
	want.Differs, want.Written = true, false
	want.Changes = want.Changes[:0:0]
	want.Changes = append(want.Changes, struct {
		Schematic string
		Nodes     []string
	}{"bgp", []string{"wk1", "wk2"}})
	want.Warnings = []map[string]string{{"kind": "tag-moved", "subject": "ghcr.io/acme/frr:1.7", "locked": "sha256:aa", "found": "sha256:bb", "text": "t", "hint": "h"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s\n%s", diff, out.String())
	}
}
