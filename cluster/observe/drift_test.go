package observe

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/files"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/words"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	made := func(id, yaml string) func(*Found) {
		return func(f *Found) { f.Machine.Schematic = cluster.SchematicEntry{ID: id, YAML: yaml} }
	}
	for name, tc := range map[string]struct {
		change func(*Found)
		want   []cluster.Reason
	}{
		"in sync": {func(*Found) {}, nil},
		"same version, new digest": {
			made("id-old", "- recast.lock="+clustertest.OldHash+"\n"),
			[]cluster.Reason{{Code: "extension-digest", Text: "extension iscsi-tools v0.2.0: sha256:aaaaaaaaaaaa → sha256:bbbbbbbbbbbb", Old: "sha256:aaaaaaaaaaaaaaaa", New: "sha256:bbbbbbbbbbbbbbbb"}},
		},
		"an unknown lock": {
			made("id-old", "- recast.lock=sha256-other\n"),
			[]cluster.Reason{{Code: "lock", Text: "extensions of another lock: sha256-other → sha256-new", Old: "sha256-other", New: "sha256-new"}},
		},
		"other kernel arguments": {
			func(f *Found) { f.Machine.Schematic.ID = "id-old" },
			[]cluster.Reason{{Code: "schematic", Text: "schematic id-old → id-new", Old: "id-old", New: "id-new"}},
		},
		"not locked by recast": {
			made("id-new", "customization: {}\n"),
			[]cluster.Reason{{Code: "unknown-build", Text: "its schematic was not locked by recast: extension digests unknown", Old: "id-new", New: "id-new"}},
		},
		"no schematic at all": {made("", ""), []cluster.Reason{{Code: "unknown-build", Text: "its image carries no schematic: what it was built from is unknown", New: "b1"}}},
		"older Talos": {
			func(f *Found) { f.Machine.TalosVersion = "v1.13.8" },
			[]cluster.Reason{{Code: "talos-version", Text: "Talos v1.13.8 → v1.13.9", Old: "v1.13.8", New: "v1.13.9"}},
		},
		"made for another machine": {
			func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "arm64", "metal", new(true) },
			[]cluster.Reason{
				{Code: "arch", Text: "architecture arm64 → amd64", Old: "arm64", New: "amd64"},
				{Code: "platform", Text: "platform metal → nocloud", Old: "metal", New: "nocloud"},
				{Code: "secure-boot", Text: "Secure Boot on → off", Old: "on", New: "off"},
			},
		},
		"it does not say for which machine": {func(f *Found) { f.Machine.Arch, f.Machine.Platform, f.Machine.SecureBoot = "", "", nil }, nil},
		"extensions by name and version": {
			func(f *Found) {
				f.Machine.Extensions = []cluster.ExtensionEntry{{Name: "iscsi-tools", Version: "v0.1.0"}, {Name: "zfs", Version: "2.3"}}
			},
			[]cluster.Reason{
				{Code: "extension-version", Text: "extension iscsi-tools v0.1.0 → v0.2.0", Old: "v0.1.0", New: "v0.2.0"},
				{Code: "extension-extra", Text: "extension zfs 2.3 is not in the schematic", Old: "2.3"},
			},
		},
		"extension missing": {
			func(f *Found) { f.Machine.Extensions = nil },
			[]cluster.Reason{{Code: "extension-missing", Text: "extension iscsi-tools v0.2.0 is missing", New: "v0.2.0"}},
		},
		"boot ISO left in": {
			func(f *Found) { f.VM.Config["ide2"] = "isos:iso/recast-v1-b.iso,media=cdrom" },
			[]cluster.Reason{{Code: "boot-media", Text: "boot ISO recast-v1-b.iso is still in ide2", Old: "recast-v1-b.iso"}},
		},
		"a user's own ISO stays": {func(f *Found) { f.VM.Config["ide2"] = "isos:iso/debian.iso,media=cdrom" }, nil},
		"unfinished": {
			func(f *Found) {
				f.Parking = &parking.Parking{VM: cluster.VM{ID: 9090, Name: "p", Host: "pve1"}, Record: parking.Record{Run: "r1", Open: true}}
			},
			[]cluster.Reason{{Code: "unfinished", Text: `its replacement by run r1 is not finished; disks may be on VM 9090 "p" on pve1`}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := clustertest.InSync()
			f := Found{Name: "wk1", Machine: &m, VM: &cluster.VM{ID: 9011, Config: map[string]string{"ide2": "none,media=cdrom"}}}
			tc.change(&f)
			got := Diff(cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}, f, clustertest.Past)
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
	d := Diff(cluster.Wanted{Name: "wk1", Build: clustertest.WantedBuild()}, Found{Errs: []error{errors.New("no answer")}}, clustertest.Past)
	if d.Stale || len(d.Unread) != 1 {
		t.Errorf("%+v", d)
	}
}

func TestDriftWithFiles(t *testing.T) {
	t.Parallel()
	const good, evil = "sha256:600d600d600d600d", "sha256:e711e711e711e711"
	d := Drift{Node: "wk1"}
	same := d.WithFiles(files.FileCheck{Files: 3, Bytes: 9, NotCompared: []string{"x"}}, nil)
	if diff := cmp.Diff(Drift{Node: "wk1", Notes: []string{"3 files of its extensions compared (9 bytes read): all are as locked", "not compared: x"}}, same); diff != "" {
		t.Errorf("the same (-want +got):\n%s", diff)
	}
	other := d.WithFiles(files.FileCheck{Files: 3, Bytes: 9, More: 2, Differ: []files.FileDiff{
		{Path: "/usr/local/a", Extension: "tool v1", Found: evil, Wanted: good},
	}}, nil)
	want := Drift{
		Node: "wk1", Stale: true, Notes: []string{"3 files of its extensions compared (9 bytes read): 3 differ"},
		Reasons: []cluster.Reason{
			{Code: "extension-file", Text: "/usr/local/a of extension tool v1: " + words.Short(evil) + " → " + words.Short(good), Old: evil, New: good},
			{Code: "extension-file", Text: "2 more files of extensions are not as locked"},
		},
	}
	if diff := cmp.Diff(want, other); diff != "" {
		t.Errorf("other (-want +got):\n%s", diff)
	}
	if got := d.WithFiles(files.FileCheck{}, errors.New("no answer")); got.Stale || !slices.Equal(got.Unread, []string{"no answer"}) {
		t.Errorf("unread: %+v", got)
	}
}
