package schematics

import (
	"slices"
	"testing"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	base := request(map[string]string{"a": agent})
	before := resolve(t, base, catalog())
	x := before.Schematics["a"].Extensions[0]
	other := Extension{Name: "iscsi-tools", Version: "1.0", Ref: "ghcr.io/siderolabs/iscsi-tools", Digest: digestOf("iscsi-tools")}
	patched := x
	patched.Digest = digestOf("patched")
	newer := Extension{Name: x.Name, Version: "2.0", Ref: x.Ref, Digest: patched.Digest}
	const both = "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent, siderolabs/iscsi-tools]}}\n"

	type row struct {
		texts   map[string]string
		change  func(*OfficialExtension)
		request func(*Request)
		want    []Change // build IDs are filled in
	}
	each(t, map[string]row{
		"nothing": {texts: map[string]string{"a": agent}},
		"another digest": {
			texts:  map[string]string{"a": agent},
			change: func(o *OfficialExtension) { o.Digest = patched.Digest },
			want: []Change{{
				Schematic: "a", Moved: []Moved{{x, patched}},
				Reasons: []string{"extension qemu-guest-agent 1.0: " + x.Digest + " → " + patched.Digest},
			}},
		},
		"another version": {
			texts:  map[string]string{"a": agent},
			change: func(o *OfficialExtension) { o.Digest, o.Version = newer.Digest, newer.Version },
			want: []Change{{
				Schematic: "a", Moved: []Moved{{x, newer}},
				Reasons: []string{"extension qemu-guest-agent 1.0 → 2.0: " + x.Digest + " → " + newer.Digest},
			}},
		},
		"another Talos": {
			texts: map[string]string{"a": agent}, request: func(r *Request) { r.Talos = "v1.13.10" },
			want: []Change{{Schematic: "a", Moved: []Moved{}, Reasons: []string{"Talos v1.13.9 → v1.13.10"}}},
		},
		"one more extension": {
			texts: map[string]string{"a": both},
			want: []Change{{
				Schematic: "a", Moved: []Moved{{Extension{}, other}},
				Reasons: []string{"extension iscsi-tools 1.0 added: " + other.Digest, "a.yaml changed"},
			}},
		},
		"no extension": {
			texts: map[string]string{"a": "customization: {}\n"},
			want:  []Change{{Schematic: "a", Moved: []Moved{{x, Extension{}}}, Reasons: []string{"extension qemu-guest-agent 1.0 removed", "a.yaml changed"}}},
		},
		"added and removed": {
			texts: map[string]string{"b": agent},
			want: []Change{
				{Schematic: "a", Moved: []Moved{}, Reasons: []string{"removed"}},
				{Schematic: "b", Moved: []Moved{}, Reasons: []string{"added"}},
			},
		},
	}, func(t *testing.T, tc row) {
		req := request(tc.texts)
		if tc.request != nil {
			tc.request(&req)
		}
		known := catalog()
		at := slices.IndexFunc(known, func(o OfficialExtension) bool { return o.Name == "siderolabs/qemu-guest-agent" })
		if tc.change != nil {
			tc.change(&known[at])
		}
		after := resolve(t, req, known)
		for i, c := range tc.want {
			tc.want[i].OldBuild = before.Schematics[c.Schematic].BuildID
			tc.want[i].NewBuild = after.Schematics[c.Schematic].BuildID
		}
		same(t, "changes", tc.want, Compare(before, after))
	})
}

func TestSuggest(t *testing.T) {
	t.Parallel()
	names := []string{"siderolabs/gvisor", "siderolabs/qemu-guest-agent", "siderolabs/zfs"}
	for unknown, want := range map[string]string{
		"siderolabs/gvisr":            "siderolabs/gvisor",
		"Siderolabs/QEMU-guest-agent": "siderolabs/qemu-guest-agent",
		"zfs":                         "siderolabs/zfs",
		"acme/zfs":                    "siderolabs/zfs",
		"siderolabs/frr-routing":      "",
		"":                            "",
	} {
		if got := suggest(unknown, names); got != want {
			t.Errorf("suggest(%q) = %q, want %q", unknown, got, want)
		}
	}
}
