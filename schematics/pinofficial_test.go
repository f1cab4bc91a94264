package schematics

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const agentRef = "ghcr.io/siderolabs/qemu-guest-agent"

// TestPinOfficial: recast.yaml may give the digest of an official extension, whether
// or not the schematic's file names it. Other schematics, and later locks, still
// follow the list.
func TestPinOfficial(t *testing.T) {
	t.Parallel()
	older := digestOf("an older one")
	pin := Explicit{Repository: agentRef, Digest: older, Place: "recast.yaml:9:1"}
	want := Extension{Name: "qemu-guest-agent", Version: "0.9", Ref: agentRef, Digest: older, Explicit: true}
	both := "customization: {systemExtensions: {officialExtensions: [siderolabs/qemu-guest-agent, siderolabs/iscsi-tools]}}\n"
	type row struct {
		text  string
		order []string
	}
	each(t, map[string]row{
		"named in the file, too": {both, []string{"qemu-guest-agent", "iscsi-tools"}},
		"in recast.yaml alone":   {strings.Replace(both, "siderolabs/qemu-guest-agent, ", "", 1), []string{"iscsi-tools", "qemu-guest-agent"}},
	}, func(t *testing.T, tc row) {
		images := newShelf(catalog())
		images.put(agentRef, "0.9", older, ExtensionImage{Architectures: []string{"amd64"}, Name: "qemu-guest-agent", Version: "0.9"})
		from := Sources{Catalog: catalog(), Images: images}
		req := own(tc.text, pin)
		req.Files["b"] = File{Path: "b.yaml", Data: []byte(both)}
		for range 2 { // from nothing, and over the first lock
			l, _, err := Resolve(t.Context(), req, from)
			noError(t, err)
			a, b := l.Schematics["a"], l.Schematics["b"]
			if len(a.Extensions) != 2 {
				t.Fatalf("locked %+v", a.Extensions)
			}
			same(t, "pinned", want, a.Extensions[1])
			if x := b.Extensions[1]; x.Digest != digestOf("qemu-guest-agent") || x.Explicit {
				t.Errorf("of the other schematic: %+v", x)
			}
			order, err := a.BuildOrder()
			var names []string
			for _, x := range order {
				names = append(names, x.Name)
			}
			if diff := cmp.Diff(tc.order, names); diff != "" || err != nil {
				t.Errorf("build order (-want +got):\n%s%v", diff, err)
			}
			if got := a.Outdated(catalog()); len(got) > 0 {
				t.Errorf("a factory is asked for what it can't build: %v", got)
			}
			if err := l.Matches(req); err != nil {
				t.Errorf("the lock does not match its inputs: %v", err)
			}
			text := must(formatLock(l))(t)
			if _, err := ParseLock("recast.lock", text); err != nil {
				t.Errorf("the lock can't be read back: %v", err)
			}
			req.Old = &l
		}
		req = own(both)
		req.Old = nil
		unpinned, _, err := Resolve(t.Context(), req, from)
		if err != nil || unpinned.Schematics["a"].Extensions[1].Digest != digestOf("qemu-guest-agent") {
			t.Errorf("unpinned: %v, %+v", err, unpinned.Schematics["a"].Extensions)
		}
	})
}
