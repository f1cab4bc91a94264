package pipeline

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/schematics"
)

func TestWanted(t *testing.T) {
	t.Parallel()
	agent := schematics.Extension{Name: "qemu-guest-agent", Version: "11.0.2", Ref: "ghcr.io/siderolabs/qemu-guest-agent", Digest: "sha256:11"}
	lock := schematics.Lock{Talos: "v1.13.9", Broken: true, Arch: "arm64", Platform: "metal", SecureBoot: true, Schematics: map[string]schematics.Locked{
		"default": {
			BuildID: "b1", SchematicID: "s1", LockHash: "sha256-00", Extensions: []schematics.Extension{agent},
			Overlay:   &schematics.Overlay{Name: "rpi", Ref: "ghcr.io/acme/sbc", Digest: "sha256:33"},
			Rebuild:   1,
			Installer: "ghcr.io/acme/talos@sha256:22", ISO: schematics.BootFile{Name: "default.iso"},
			Schematic: "customization:\n    extraKernelArgs:\n        - console=ttyS0\n        - recast.lock=sha256-00\n",
		},
		"plain": {BuildID: "b2", SchematicID: "s2", Schematic: "customization: {}\n"},
	}}
	p := Project{Config: &config.Config{
		Kubernetes: config.Kubernetes{Version: "v1.35.4"},
		Images:     config.Images{ISO: config.ISO{Storage: []string{"cephfs", "local"}}},
		Nodes: []config.Node{
			{
				Name: "wk1", Schematic: "default", VMID: 111, Strategy: "in-place", Holder: 9101, AcceptLoss: []string{"pv/a"},
				SystemDisk: config.SystemDisk{Slot: "scsi0", SizeGiB: 10},
			},
			{Name: "cp1", Schematic: "plain", Strategy: "auto"},
		},
	}}
	want := []cluster.Wanted{
		{
			Name: "wk1", Schematic: "default", VMID: 111, Strategy: cluster.InPlace, Holder: 9101, AcceptLoss: []string{"pv/a"},
			Kubernetes: "v1.35.4", SystemDisk: "scsi0", SystemGiB: 10, ISOStorages: []string{"cephfs", "local"},
			Build: cluster.Build{
				ID: "b1", TalosVersion: "v1.13.9", Broken: true, Arch: "arm64", Platform: "metal", SecureBoot: true, SchematicID: "s1", LockHash: "sha256-00",
				Extensions: []cluster.LockedExtension{{Name: agent.Name, Version: agent.Version, Ref: agent.Ref, Digest: agent.Digest}},
				Overlay:    cluster.LockedOverlay{Name: "rpi", Digest: "sha256:33"}, Rebuild: 1,
				Installer: "ghcr.io/acme/talos@sha256:22", ISOName: "default.iso",
				KernelArgs: []string{"console=ttyS0", "recast.lock=sha256-00"},
				Schematic:  cluster.Secret("customization:\n    extraKernelArgs:\n        - console=ttyS0\n        - recast.lock=sha256-00\n"),
			},
		},
		{
			Name: "cp1", Schematic: "plain", Strategy: cluster.Auto, Kubernetes: "v1.35.4", ISOStorages: []string{"cephfs", "local"},
			Build: cluster.Build{ID: "b2", TalosVersion: "v1.13.9", Broken: true, Arch: "arm64", Platform: "metal", SecureBoot: true, SchematicID: "s2", Schematic: cluster.Secret("customization: {}\n")},
		},
	}
	must.Equal(t, "wanted", want, p.Wanted(lock), cmpopts.EquateComparable(netip.Addr{}))
	past := must.Get(p.History(lock))(t)
	build := want[0].Build
	content, known := past("sha256-00")
	if diff := cmp.Diff(cluster.LockedContent{Extensions: build.Extensions, Overlay: build.Overlay, Rebuild: build.Rebuild}, content); diff != "" || !known {
		t.Errorf("history (-want +got):\n%s", diff)
	}
}

// TestConfigKnown: the journal's configuration takes precedence over the user's file,
// and neither is used if its checksum is not the record's.
func TestConfigKnown(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("machine: {}"))
	record := parking.Record{Run: "r1", Open: true, Strategy: cluster.Recreate, Config: hex.EncodeToString(sum[:])}
	edited := parking.Record{Run: "r1", Open: true, Strategy: cluster.Recreate}
	rollback := parking.Record{Run: "r1", Open: true, Strategy: cluster.Rollback}
	for name, c := range map[string]struct {
		journal, file string // "": there is none
		rec           parking.Record
		want          cluster.ConfigPlace
		damaged       bool
	}{
		"nowhere":                       {"", "", record, cluster.ConfigNowhere, false},
		"both":                          {"machine: {}", "machine: {}", record, cluster.ConfigInJournal, false},
		"another file":                  {"machine: {}", "machine: {a: 1}", record, cluster.ConfigInJournal, false},
		"the file alone":                {"", "machine: {}", record, cluster.ConfigInFile, false},
		"another file alone":            {"", "machine: {a: 1}", record, cluster.ConfigNowhere, false},
		"damaged":                       {"machine", "", record, cluster.ConfigNowhere, true},
		"damaged, the file is the same": {"machine", "machine: {}", record, cluster.ConfigInFile, false},
		"damaged, another file":         {"machine", "machine: {a: 1}", record, cluster.ConfigNowhere, true},
		"the record lacks its sum":      {"machine: {}", "machine: {}", edited, cluster.ConfigNowhere, true},
		"it does, and there is a file":  {"", "machine: {}", edited, cluster.ConfigNowhere, false},
		"a rollback brings none":        {"", "machine: {a: 1}", rollback, cluster.ConfigInFile, false},
		"a machine that was reset":      {"", "machine: {a: 1}", parking.Record{}, cluster.ConfigInFile, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := projectOf(t)
			j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "r1"})
			if err == nil && c.journal != "" {
				err = j.PutSecret(roll.MachineConfigKey("wk1"), []byte(c.journal))
			}
			must.Do(t, errors.Join(err, j.Close()))
			file := func(context.Context, string) (cluster.Secret, bool, error) {
				return cluster.Secret(c.file), c.file != "", nil
			}
			got, err := configKnown(t.Context(), p, Machines{MachineConfig: file}, "wk1", c.rec)
			if got != c.want || errors.Is(err, cluster.ErrConfigDamaged) != c.damaged || err != nil && !c.damaged {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// fakePuller has one image for every reference.
type fakePuller struct {
	image  []byte
	end    error // instead of EOF
	pulled []string
}

func (f *fakePuller) Extract(_ context.Context, ref, arch string) (io.ReadCloser, error) {
	f.pulled = append(f.pulled, ref+" "+arch)
	end := f.end
	if end == nil {
		end = io.EOF
	}
	return io.NopCloser(io.MultiReader(bytes.NewReader(f.image), failing{end})), nil
}

func (*fakePuller) Signatures(context.Context, string) ([]images.Signature, error) { return nil, nil }

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// extensionImage returns the flattened tar of an extension's image.
func extensionImage(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{
		"manifest.yaml":             "version: v1alpha1\nmetadata:\n  name: tool\n  version: v1\n  author: Acme\n  description: A tool.\n  compatibility:\n    talos:\n      version: \">= v1.0.0\"\n",
		"rootfs/usr/local/bin/tool": "tool",
	} {
		must.Do(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))}))
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	must.Do(t, w.Close())
	return b.Bytes()
}

// TestLockedFiles: each image is read once, by digest.
func TestLockedFiles(t *testing.T) {
	t.Parallel()
	puller := &fakePuller{image: extensionImage(t)}
	locked := newLockedFiles(puller, func(string) {})
	build := cluster.Build{EmbedsConfig: true, Extensions: []cluster.LockedExtension{{Name: "tool", Version: "v1", Ref: "ghcr.io/acme/tool", Digest: "sha256:aa"}}}
	for range 2 {
		var target observe.FileTarget
		must.Do(t, locked.want(t.Context(), &target, "arm64", build))
		want := observe.FileTarget{EmbedsConfig: true, Content: []observe.LockedFiles{{Extension: build.Extensions[0], Files: map[string]observe.LockedFile{
			"/usr/local/bin/tool": {Mode: 0o755, SizeBytes: 4, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte("tool")))},
		}}}}
		must.Equal(t, "target", want, target, cmpopts.EquateComparable(netip.Addr{}))
	}
	must.Equal(t, "pulled", []string{"ghcr.io/acme/tool@sha256:aa arm64"}, puller.pulled)
}

// TestLockedFilesAreChecked: an image whose digest turns out to be wrong after its last
// file is refused.
func TestLockedFilesAreChecked(t *testing.T) {
	t.Parallel()
	wrong := errors.New("it has another digest")
	locked := newLockedFiles(&fakePuller{image: extensionImage(t), end: wrong}, func(string) {})
	err := locked.want(t.Context(), new(observe.FileTarget), "amd64", cluster.Build{Extensions: []cluster.LockedExtension{{Name: "tool"}}})
	if !errors.Is(err, wrong) || !strings.HasPrefix(err.Error(), "read the locked image of extension tool: ") {
		t.Errorf("err = %v", err)
	}
}

// TestDescribe: an unknown schematic is described without the values of its kernel
// arguments.
func TestDescribe(t *testing.T) {
	t.Parallel()
	got, ok := describe("customization:\n    extraKernelArgs:\n        - siderolink.api=grpc://x?jointoken=s3cret\n        - quiet\n    systemExtensions:\n        officialExtensions:\n            - siderolabs/gvisor\n")
	want := observe.Described{Extensions: []string{"siderolabs/gvisor"}, Args: []string{"siderolink.api", "quiet"}}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("ok = %v (-want +got):\n%s", ok, diff)
	}
	if got, ok := describe("customization: {unknown: 1}\n"); ok {
		t.Errorf("got %+v", got)
	}
}
