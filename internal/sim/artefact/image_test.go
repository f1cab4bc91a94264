package artefact_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/artefact"
)

// TestFirmwareIsMoved: imager takes it out of the extensions, as the kernel needs it before they are mounted.
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
	b, err := artefact.UKI(img)
	if err != nil {
		t.Fatal(err)
	}
	got, err := artefact.ReadUKI(b)
	if err != nil {
		t.Fatal(err)
	}
	want := booted("amd64")
	want.Extensions[1].Files = map[string][]byte{"/usr/local/bin/tool": []byte("tool")}
	want.Loose = map[string][]byte{
		"/usr/lib/firmware/i915/adlp_dmc.bin":         []byte("firmware"),
		"/usr/lib/firmware/amd-ucode/microcode_amd.b": []byte("no microcode by its name"),
		"/kernel/x86/microcode/GenuineIntel.bin":      []byte("onetwo"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read image (-want +got):\n%s", diff)
	}
	again, err := artefact.UKI(got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, again) {
		t.Error("the image that was read, made again, has other bytes")
	}
}

// TestModuleDependencies: imager runs depmod over all kernel modules and puts what it wrote into one more extension.
func TestModuleDependencies(t *testing.T) {
	t.Parallel()
	img := image("amd64")
	const dir = "/usr/lib/modules/6.18.0-talos/"
	img.Extensions[1].Files = map[string][]byte{dir + "extras/card.ko": []byte("module")}
	b, err := artefact.UKI(img)
	if err != nil {
		t.Fatal(err)
	}
	got, err := artefact.ReadUKI(b)
	if err != nil {
		t.Fatal(err)
	}
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
	again, err := artefact.UKI(got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, again) {
		t.Error("the image that was read, made again, has other bytes")
	}
	img.Extensions[1].Files = map[string][]byte{"/usr/lib/modules/5.0.0/card.ko": nil}
	if _, err := artefact.UKI(img); err == nil {
		t.Error("an image with modules of another kernel was made")
	}
}

// TestReadImagesAreTheCallersOwn: what one reader changes, the next one does not see.
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
		img.Extensions[1].Name = "changed"
	}
}
