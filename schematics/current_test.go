package schematics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/fault"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	lock := resolve(t, request(map[string]string{"a": agent, "b": "customization: {}\n"}), catalog())
	type row struct {
		change func(*Request)
		want   []string // nil: it matches
	}
	each(t, map[string]row{
		"the same": {func(*Request) {}, nil},
		"another way to write it": {func(r *Request) {
			r.Files["b"] = File{Path: "b.yaml", Data: []byte("# a comment\ncustomization:\n  extraKernelArgs: []\n")}
		}, nil},
		"everything else": {func(r *Request) {
			r.Talos, r.Arch, r.Platform, r.SecureBoot = "v1.14.0", "arm64", "metal", true
		}, []string{`Talos version: recast.lock has "v1.13.9", the configuration "v1.14.0"`, "architecture: ", "platform: ", "secure boot: "}},
		"an edited file": {func(r *Request) {
			r.Files["b"] = File{Path: "b.yaml", Data: []byte(agent)}
		}, []string{"schematic b has changed since it was locked"}},
		"other files": {func(r *Request) {
			r.Files["c"] = r.Files["b"]
			delete(r.Files, "b")
		}, []string{"schematic c is not in recast.lock", "schematic b is in recast.lock, but not in the configuration"}},
		"a broken file": {func(r *Request) {
			r.Files["b"] = File{Path: "b.yaml", Data: []byte("x: 1\n")}
		}, []string{`b.yaml:1:1: unknown key "x"`}},
	}, func(t *testing.T, tc row) {
		req := request(map[string]string{"a": agent, "b": "customization: {}\n"})
		tc.change(&req)
		err := lock.Matches(req)
		if (err != nil) != (tc.want != nil) {
			t.Fatalf("error = %v, want %q", err, tc.want)
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error\n got %v\nwant it to hold %q", err, want)
			}
		}
	})
}

func TestCheckRegistered(t *testing.T) {
	t.Parallel()
	e := resolve(t, request(map[string]string{"a": "customization: {extraKernelArgs: ['yes'], meta: [{key: 10, value: on}]}\n"}), catalog()).Schematics["a"]
	other := strings.Repeat("0", 64)
	ids := "the factory gives schematic a the ID " + other + ", but the lock has " + e.SchematicID
	type row struct {
		id, text, want, hint string
	}
	each(t, map[string]row{
		"the same":          {id: e.SchematicID, text: e.Schematic},
		"the same, no text": {id: e.SchematicID},
		"quoted another way": {
			other, strings.Replace(e.Schematic, `"yes"`, "'yes'", 1),
			ids + `: line 3 of its canonical text is "        - 'yes'", of ours "        - \"yes\""`,
			"both say the same, but the factory's YAML library quotes differently, as some of its versions do with strings such as yes, no, on, off: remove such a string from a.yaml, or use a factory of another version",
		},
		"more than we know": {
			other, e.Schematic + "new: 1\n", ids + `: line 8 of its canonical text is "new: 1", of ours ""`,
			"the factory understands the schematic differently than this recast: one of them is too old for what line 8 says",
		},
		"less than we know": {
			other, "customization: {}\n", ids + `: line 1 of its canonical text is "customization: {}", of ours "customization:"`,
			"the factory understands the schematic differently than this recast: one of them is too old for what line 1 says",
		},
		"a wrong sum": {
			other, e.Schematic, ids + ", for the same text",
			"an ID is the SHA-256 of the canonical text: the server is not an Image Factory, or changes what it receives",
		},
	}, func(t *testing.T, tc row) {
		err := e.CheckRegistered("a", tc.id, tc.text)
		if tc.want == "" {
			noError(t, err)
			return
		}
		if err == nil || err.Error() != tc.want || fault.KindOf(err) != fault.Refused {
			t.Errorf("error\n got %v\nwant %s", err, tc.want)
		}
		if got := strings.Join(fault.Hints(err), "; "); got != tc.hint {
			t.Errorf("hint\n got %s\nwant %s", got, tc.hint)
		}
	})
}

func lockOf(t *testing.T, arg string) Lock {
	t.Helper()
	return resolve(t, request(map[string]string{"default": "customization: {extraKernelArgs: [" + arg + "=1]}\n"}), catalog())
}

func TestPrevious(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "locks")
	now := lockOf(t, "now")
	if _, found, err := Previous(dir, now); found || err != nil {
		t.Errorf("without a directory: %t, %v", found, err)
	}
	for i, name := range []string{"first", "second", "now"} {
		past := lockOf(t, name)
		noError(t, Archive(dir, past))
		at := time.Date(2026, 1, 1+i, 0, 0, 0, 0, time.UTC)
		noError(t, os.Chtimes(filepath.Join(dir, past.Key()+".lock"), at, at))
	}
	got, found, err := Previous(dir, now)
	if want := lockOf(t, "second").Key(); !found || got.Key() != want || err != nil {
		t.Errorf("%t, %v: not the second one", found, err)
	}
	noError(t, os.WriteFile(filepath.Join(dir, "x.lock"), []byte("talos: ["), 0o600))
	if _, found, err := Previous(dir, now); found || err == nil {
		t.Errorf("with one that can't be read: %t, %v", found, err)
	}
}
