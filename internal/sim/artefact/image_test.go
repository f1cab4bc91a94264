package artefact_test

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// TestFirmwareIsMoved: imager moves it out of the extensions, because the kernel needs it before they are
// mounted.
func TestFirmwareIsMoved(t *testing.T) {
	t.Parallel()
	img := image("amd64")
	img.Extensions[1].Files = map[string][]byte{
		"/usr/local/bin/tool":                         []byte("tool"),
		"/usr/lib/firmware/i915/adlp_dmc.bin":         []byte("firmware"),
		"/usr/lib/firmware/intel-ucode/06-55-04":      []byte("one"),
		"/usr/lib/firmware/intel-ucode/06-55-07":      []byte("two"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.b": []byte("no microcode by its name"),
	}
	img.Extensions[1].Links = map[string]string{
		"/usr/local/lib/firmware":              "../../lib/firmware",
		"/usr/lib/firmware/card.bin":           "i915/adlp_dmc.bin",
		"/usr/lib/firmware/a.bin":              "./card.bin",
		"/usr/lib/firmware/intel-ucode/00-one": "06-55-04",
	}
	got := madeTwice(t, img)
	want := booted("amd64")
	want.Extensions[1].Files = map[string][]byte{"/usr/local/bin/tool": []byte("tool")}
	want.Extensions[1].Links = map[string]string{"/usr/local/lib/firmware": "../../lib/firmware"}
	want.Loose = map[string][]byte{
		"/usr/lib/firmware/i915/adlp_dmc.bin":         []byte("firmware"),
		"/usr/lib/firmware/card.bin":                  []byte("firmware"),
		"/usr/lib/firmware/a.bin":                     []byte("firmware"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.b": []byte("no microcode by its name"),
		"/kernel/x86/microcode/GenuineIntel.bin":      []byte("oneonetwo"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read image (-want +got):\n%s", diff)
	}
}

// TestModuleDependencies: imager runs depmod over all kernel modules and puts the result into one more extension.
func TestModuleDependencies(t *testing.T) {
	t.Parallel()
	img := image("amd64")
	const dir = "/usr/lib/modules/6.18.0-talos/"
	img.Extensions[1].Files = map[string][]byte{dir + "extras/card.ko": []byte("module")}
	got := madeTwice(t, img)
	want := booted("amd64")
	want.Extensions[1].Files = img.Extensions[1].Files
	want.Extensions = append(want.Extensions, artefact.Extension{
		Name: "modules.dep", Version: "6.18.0-talos", Author: "Talos Machinery", Description: "Combined modules.dep for all extensions",
		Files: map[string][]byte{
			dir + "modules.dep":   []byte("extras/card.ko:\n"),
			dir + "modules.alias": []byte("# Aliases extracted from modules themselves.\n"),
		},
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read image (-want +got):\n%s", diff)
	}
	img.Extensions[1].Files = map[string][]byte{"/usr/lib/modules/5.0.0/card.ko": nil}
	if _, err := artefact.UKI(img); err == nil {
		t.Error("an image with modules of another kernel was made")
	}
	img.Kernel = "5.0.0"
	if got = madeTwice(t, img); got.Kernel != "5.0.0" || got.Extensions[2].Version != "5.0.0" {
		t.Errorf("with that kernel: %+v", got)
	}
}

// TestForeignTalosBoots: Talos' own part may be anybody's, as long as it is complete.
func TestForeignTalosBoots(t *testing.T) {
	t.Parallel()
	packed, err := os.ReadFile("../../../testdata/bootimages/uefi.iso.zst")
	if err != nil {
		t.Fatal(err)
	}
	d, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, err := d.DecodeAll(packed, nil)
	if err != nil {
		t.Fatal(err)
	}
	img, err := artefact.ReadISO(b)
	if err != nil {
		t.Fatal(err)
	}
	if len(img.Extensions) != 1 || img.Extensions[0].Name != "tools" || img.SchematicID != "ce4c" {
		t.Fatalf("extensions %+v and schematic %q", img.Extensions, img.SchematicID)
	}
	want := map[string]string{"/usr/local/lib/symlink": "../bin/tool"}
	if diff := cmp.Diff(want, img.Extensions[0].Links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	magic := []byte("\x28\xb5\x2f\xfd")
	own := bytes.Index(b, magic)
	added := own + 1 + bytes.Index(b[own+1:], magic)
	end := b[added-20 : added]
	bad := bytes.Clone(end)
	bad[19] ^= 1
	if _, err := artefact.ReadISO(bytes.ReplaceAll(b, end, bad)); !errors.Is(err, artefact.ErrNotBootable) {
		t.Errorf("with a changed byte in Talos' own part: err = %v", err)
	}
}

// TestReadImagesAreTheCallersOwn: changes by one reader are invisible to the next one.
func TestReadImagesAreTheCallersOwn(t *testing.T) {
	t.Parallel()
	b, err := artefact.UKI(image("amd64"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		img, err := artefact.ReadUKI(b)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(booted("amd64"), img); diff != "" {
			t.Fatalf("read image (-want +got):\n%s", diff)
		}
		delete(img.Extensions[0].Files, "/usr/local/etc/containers/qemu-guest-agent.yaml")
		img.Extensions[0].Links["/new"] = "x"
		img.Extensions[1].Name = "changed"
	}
}
