package cluster

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	newHash = "sha256-new"
	oldHash = "sha256-old"
)

func wantedBuild() Build {
	return Build{
		ID: "b1", TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SchematicID: "id-new", LockHash: newHash,
		Extensions: []LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:bbbbbbbbbbbbbbbb"}},
	}
}

func inSync() Machine {
	return Machine{
		UUID: "u1", TalosVersion: "v1.13.9", Arch: "amd64", Platform: "nocloud", SecureBoot: new(false), Schematic: SchematicEntry{ID: "id-new", YAML: "customization:\n  extraKernelArgs:\n    - recast.lock=" + newHash + "\n"},
		Extensions: []ExtensionEntry{{"iscsi-tools", "v0.2.0"}},
	}
}

func past(hash string) ([]LockedExtension, bool) {
	if hash == oldHash {
		return []LockedExtension{{Name: "iscsi-tools", Version: "v0.2.0", Digest: "sha256:aaaaaaaaaaaaaaaa"}}, true
	}
	return nil, false
}

func TestDiff(t *testing.T) {
	t.Parallel()
	yaml := func(hash string) string { return "- recast.lock=" + hash + "\n" }
	for name, tc := range map[string]struct {
		change func(*Found)
		want   []Reason
	}{
		"in sync": {func(*Found) {}, nil},
		"same version, new digest": {
			func(f *Found) { f.Machine.Schematic = SchematicEntry{"id-old", yaml(oldHash)} },
			[]Reason{{"extension-digest", "extension iscsi-tools v0.2.0: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb", "sha256:aaaaaaaaaaaaaaaa", "sha256:bbbbbbbbbbbbbbbb"}},
		},
		"a lock that nobody knows": {
			func(f *Found) { f.Machine.Schematic = SchematicEntry{"id-old", yaml("sha256-other")} },
			[]Reason{{"lock", "extensions of another lock: sha256-other → sha256-new", "sha256-other", "sha256-new"}},
		},
		"other kernel arguments": {
			func(f *Found) { f.Machine.Schematic.ID = "id-old" },
			[]Reason{{"schematic", "schematic id-old → id-new", "id-old", "id-new"}},
		},
		"not locked by recast": {
			func(f *Found) { f.Machine.Schematic = SchematicEntry{"id-new", "customization: {}\n"} },
			[]Reason{{"unknown-build", "its schematic was not locked by recast: extension digests unknown", "id-new", "id-new"}},
		},
		"no schematic at all": {
			func(f *Found) { f.Machine.Schematic = SchematicEntry{} },
			[]Reason{{Code: "unknown-build", Text: "its image carries no schematic: nobody can tell what it was built from", New: "b1"}},
		},
		"older Talos": {
			func(f *Found) { f.Machine.TalosVersion = "v1.13.8" },
			[]Reason{{"talos-version", "Talos v1.13.8 → v1.13.9", "v1.13.8", "v1.13.9"}},
		},
		"made for another machine": {
			func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "arm64", "metal", new(true) },
			[]Reason{
				{"arch", "architecture arm64 → amd64", "arm64", "amd64"},
				{"platform", "platform metal → nocloud", "metal", "nocloud"},
				{"secure-boot", "Secure Boot on → off", "on", "off"},
			},
		},
		"it does not say for which machine": {func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "", "", nil }, nil},
		"extensions by name and version": {
			func(f *Found) { f.Machine.Extensions = []ExtensionEntry{{"iscsi-tools", "v0.1.0"}, {"zfs", "2.3"}} },
			[]Reason{
				{"extension-version", "extension iscsi-tools v0.1.0 → v0.2.0", "v0.1.0", "v0.2.0"},
				{Code: "extension-extra", Text: "extension zfs 2.3 is not in the schematic", Old: "2.3"},
			},
		},
		"extension missing": {
			func(f *Found) { f.Machine.Extensions = nil },
			[]Reason{{Code: "extension-missing", Text: "extension iscsi-tools v0.2.0 is missing", New: "v0.2.0"}},
		},
		"boot ISO left in": {
			func(f *Found) { f.VM.Config["ide2"] = "isos:iso/recast-v1-b.iso,media=cdrom" },
			[]Reason{{Code: "boot-media", Text: "boot ISO recast-v1-b.iso is still in ide2", Old: "recast-v1-b.iso"}},
		},
		"somebody's own ISO is theirs": {func(f *Found) { f.VM.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil},
		"unfinished": {
			func(f *Found) {
				f.Parking = &Parking{VM: VM{ID: 9090, Name: "p", Host: "pve1"}, Record: Record{Run: "r1", Open: true}}
			},
			[]Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := inSync()
			f := Found{Name: "wk1", Machine: &m, VM: &VM{ID: 9011, Config: map[string]string{"ide2": "none,media=cdrom"}}}
			tc.change(&f)
			got := Diff(Wanted{Name: "wk1", Build: wantedBuild()}, f, past)
			if diff := cmp.Diff(tc.want, got.Reasons); diff != "" {
				t.Error(diff)
			}
			if got.Stale != (len(tc.want) > 0) {
				t.Errorf("stale %t", got.Stale)
			}
		})
	}
}

func TestDiffKeepsUnreadApartFromStale(t *testing.T) {
	t.Parallel()
	d := Diff(Wanted{Name: "wk1", Build: wantedBuild()}, Found{Errs: []error{errors.New("no answer")}}, past)
	if d.Stale || len(d.Unread) != 1 {
		t.Errorf("%+v", d)
	}
}
