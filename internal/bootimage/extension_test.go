package bootimage_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/recast-sh/recast/internal/bootimage"
)

const manifest = "version: v1alpha1\nmetadata:\n  name: tools\n  version: v1.0.0\n  author: Somebody\n  description: Some tools.\n" +
	"  compatibility:\n    talos:\n      version: '>= v1.5.0'\n  extraInfo: more\n"

// tarred packs headers in order; Linkname is the content of a regular file.
func tarred(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		noError(t, w.WriteHeader(&h))
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	noError(t, w.Close())
	return b.Bytes()
}

func TestReadExtension(t *testing.T) {
	t.Parallel()
	b := tarred(t,
		tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: manifest},
		tar.Header{Typeflag: tar.TypeDir, Name: "rootfs/"},
		tar.Header{Typeflag: tar.TypeDir, Name: "rootfs/usr/"},
		tar.Header{Typeflag: tar.TypeReg, Name: "rootfs/usr/tool", Mode: 0o4755, Linkname: "tool"},
		tar.Header{Typeflag: tar.TypeLink, Name: "./rootfs/usr/hard", Linkname: "rootfs/usr/tool"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "/rootfs/usr/soft", Mode: 0o644, Linkname: "../tool"},
	)
	got := must(bootimage.ReadExtension(bytes.NewReader(append(b, make([]byte, 4096)...))))(t)
	hard := file(0o755|fs.ModeSetuid, "tool")
	hard.HardLink, hard.LinkMode = true, 0o644
	want := bootimage.Extension{
		Name: "tools", Version: "v1.0.0", Author: "Somebody", Description: "Some tools.", ExtraInfo: "more",
		Files: bootimage.Tree{
			"/usr/tool": file(0o755|fs.ModeSetuid, "tool"), "/usr/hard": hard, "/usr/soft": link("../tool"),
		},
	}
	same(t, "extension", want, got)
}

func TestExtensionRefused(t *testing.T) {
	t.Parallel()
	m := tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: manifest}
	named := func(content string) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: "manifest.yaml", Linkname: content}
	}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Linkname: "x"} }
	type row struct {
		headers []tar.Header
		want    string
	}
	each(t, map[string]row{
		"nothing":               {nil, "no /manifest.yaml"},
		"no manifest":           {[]tar.Header{file("rootfs/a")}, "no /manifest.yaml"},
		"two manifests":         {[]tar.Header{m, m}, "has to be one file"},
		"a link for a manifest": {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "manifest.yaml", Linkname: "x"}}, "has to be one file"},
		"no YAML":               {[]tar.Header{named("{")}, "/manifest.yaml: "},
		"nameless":              {[]tar.Header{named("version: v1alpha1\n")}, "does not name"},
		"beside the root":       {[]tar.Header{m, file("other")}, "/other: neither the manifest nor below"},
		"the root is a file":    {[]tar.Header{m, file("rootfs")}, "/rootfs: neither the manifest nor below"},
		"out of the root":       {[]tar.Header{m, file("rootfs/../../etc/passwd")}, "leads out"},
		"a file twice":          {[]tar.Header{m, file("rootfs/a"), file("./rootfs//a")}, "/a occurs twice"},
		"a device":              {[]tar.Header{m, {Typeflag: tar.TypeChar, Name: "rootfs/a"}}, "/rootfs/a: neither a file"},
		"a pipe":                {[]tar.Header{m, {Typeflag: tar.TypeFifo, Name: "rootfs/a"}}, "/rootfs/a: neither a file"},
		"a link to nothing":     {[]tar.Header{m, {Typeflag: tar.TypeLink, Name: "rootfs/a", Linkname: "rootfs/b"}}, "does not come before it"},
	}, func(t *testing.T, tt row) {
		_, err := bootimage.ReadExtension(bytes.NewReader(tarred(t, tt.headers...)))
		requireRefused(t, err, "extension: ", tt.want)
	})
	b := tarred(t, m)
	for i := range 512 + len(manifest) {
		if _, err := bootimage.ReadExtension(bytes.NewReader(b[:i])); !errors.Is(err, bootimage.ErrFormat) {
			t.Errorf("cut to %d bytes: err = %v", i, err)
		}
	}
}
