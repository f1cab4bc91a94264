package schematics

import (
	"strings"
	"testing"
)

func TestMatches(t *testing.T) {
	t.Parallel()
	lock := resolve(t, request(map[string]string{"a": agent, "b": "customization: {}\n"}), catalog())
	for name, tc := range map[string]struct {
		change func(*Request)
		want   []string // nil: it matches
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
}
