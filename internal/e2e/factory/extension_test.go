package factory

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.yaml.in/yaml/v4"
)

// extension is a system extension as its publisher makes it.
type extension struct {
	name, version string
	files         func(arch string) []entry // below the node's root, without directories
}

// index is the extension's image.
func (e extension) index(t *testing.T) v1.ImageIndex {
	t.Helper()
	manifest, err := yaml.Marshal(map[string]any{
		"version": "v1alpha1",
		"metadata": map[string]any{
			"name": e.name, "version": e.version, "author": "Sidero Labs", "description": "The " + e.name + " of this test",
			"compatibility": map[string]any{"talos": map[string]any{"version": ">= v1.5.0"}},
		},
	})
	mustDo(t, err)
	return index(func(arch string) v1.Image {
		entries := []entry{{name: "manifest.yaml", mode: 0o644, content: manifest}, directory("rootfs")}
		files := e.files(arch)
		for _, dir := range directories(files) {
			entries = append(entries, directory("rootfs/"+dir))
		}
		for _, f := range files {
			f.name = "rootfs/" + f.name
			entries = append(entries, f)
		}
		config := v1.Config{Labels: map[string]string{"org.opencontainers.image.source": "https://github.com/siderolabs/extensions"}}
		return image(t, arch, config, packed(t, entries...))
	})
}

func directories(files []entry) []string {
	set := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(f.name); dir != "."; dir = path.Dir(dir) {
			set[dir] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// guestAgent has programs, configuration and links.
func guestAgent() extension { return guestAgentOf("11.0.2") }

func guestAgentOf(version string) extension {
	return extension{"qemu-guest-agent", version, func(arch string) []entry {
		const at = "usr/local/lib/containers/qemu-guest-agent/"
		return []entry{
			file(guestAgentAt, 0o755, random("qemu-ga "+version+" "+arch, 300<<10)),
			file(at+"usr/lib/libglib-2.0.so.0.8600.0", 0o755, random("glib "+arch, 90<<10)),
			{name: at + "usr/lib/libglib-2.0.so.0", mode: 0o777, link: "libglib-2.0.so.0.8600.0"},
			file("usr/local/etc/containers/qemu-guest-agent.yaml", 0o644, []byte("name: qemu-guest-agent\n")),
			file("usr/local/share/spdx/qemu-guest-agent.spdx.json", 0o644, nil),
		}
	}}
}

// iscsiTools is the extension that is republished.
func iscsiTools(build string) extension {
	return extension{"iscsi-tools", "v0.2.0", func(arch string) []entry {
		return []entry{
			file("usr/local/sbin/iscsid", 0o755, random("iscsid "+build+" "+arch, 120<<10)),
			file("usr/local/sbin/iscsiadm", 0o755, random("iscsiadm "+arch, 120<<10)),
			file("usr/local/etc/iscsi/iscsid.conf", 0o600, []byte("node.startup = manual\n")),
		}
	}}
}

// ucode has files that imager stores outside of the squashfs: microcode and firmware.
func ucode() extension {
	return extension{"intel-ucode", "20260513", func(string) []entry {
		const at = "usr/lib/firmware/"
		return []entry{
			file(at+"intel-ucode/06-8f-08", 0o644, random("06-8f-08", 64<<10)),
			file(at+"intel-ucode/06-97-02", 0o644, random("06-97-02", 48<<10)),
			file(at+"i915/tgl_dmc_ver2_12.bin", 0o644, random("tgl_dmc", 19<<10)),
		}
	}}
}

// drbd has a kernel module, for which imager generates an extension modules.dep.
func drbd() extension {
	return extension{"drbd", "9.2.16-v1.13.9", func(arch string) []entry {
		return []entry{file("usr/lib/modules/"+kernelRelease+"/extras/drbd.ko", 0o644, module("drbd", arch))}
	}}
}

// frr is an extension that no factory knows.
func frr() extension {
	return extension{"frr", "1.7.15", func(arch string) []entry {
		return []entry{
			file("usr/local/lib/containers/frr/usr/lib/frr/bgpd", 0o755, random("bgpd "+arch, 200<<10)),
			file("usr/local/etc/containers/frr.yaml", 0o644, []byte("name: frr\n")),
		}
	}}
}

func file(name string, mode fs.FileMode, content []byte) entry {
	return entry{name: name, mode: mode, content: content}
}

// official publishes extensions and their list for a Talos version. It returns their
// digests by name.
func (d *depot) official(t *testing.T, talos string, extensions ...extension) map[string]string {
	t.Helper()
	digests := map[string]string{}
	var lines strings.Builder
	about := map[string]map[string]string{}
	for _, e := range extensions {
		idx := e.index(t)
		d.push(t, "siderolabs/"+e.name+":"+e.version, idx)
		digests[e.name] = digestOf(t, idx)
		line := fmt.Sprintf("ghcr.io/siderolabs/%s:%s@%s", e.name, e.version, digests[e.name])
		lines.WriteString(line + "\n")
		about[line] = map[string]string{"author": "Sidero Labs", "description": "The " + e.name + " of this test"}
	}
	descriptions := must(yaml.Marshal(about))(t)
	d.push(t, "siderolabs/extensions:"+talos, image(t, "amd64", v1.Config{}, packed(t,
		file("descriptions.yaml", 0o644, descriptions), file("image-digests", 0o644, []byte(lines.String())))))
	return digests
}
