package verify

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"testing"
)

// TestEachFile: a tar is read to its end, whatever follows.
func TestEachFile(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "usr/"}, {Typeflag: tar.TypeReg, Name: "./usr/a"}, {Typeflag: tar.TypeSymlink, Name: "usr/b", Linkname: "a"},
	} {
		noError(t, w.WriteHeader(h))
	}
	noError(t, w.Close())
	b.WriteString("what follows")
	var names []string
	err := eachFile(&b, func(name string, _ io.Reader) error {
		names = append(names, name)
		return nil
	})
	if err != nil || !slices.Equal(names, []string{"usr/a"}) || b.Len() != 0 {
		t.Errorf("%v %v, %d bytes left", names, err, b.Len())
	}
}

// bzImage is an x86 kernel with its release in the boot header.
func bzImage(release string) []byte {
	b := make([]byte, 1024)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], 0x100)
	copy(b[0x300:], release+" (root@buildkitsandbox) #1 SMP\x00")
	return b
}

// TestKernelRelease: modules must match the booted kernel. The UKI's .uname is a
// constant of imager if that is of the wanted Talos version
// (internal/pkg/uki/generate.go of siderolabs/talos), so a kernel's own release
// takes precedence.
func TestKernelRelease(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kernel []byte
		uname  string
		other  string // the mismatch of modules.dep; "": none
	}{
		"the constant differs":         {bzImage("6.12.1-talos"), "6.18.0-talos", ""},
		"the kernel differs":           {bzImage("6.6.6-talos"), "6.12.1-talos", "installer: modules.dep is for kernel 6.12.1-talos, but it boots 6.6.6-talos"},
		"no constant":                  {bzImage("6.6.6-talos"), "", "installer: modules.dep is for kernel 6.12.1-talos, but it boots 6.6.6-talos"},
		"a kernel that does not tell":  {[]byte("ARM"), "6.18.0-talos", "installer: modules.dep is for kernel 6.12.1-talos, but it boots 6.18.0-talos"},
		"neither of them tells":        {[]byte("ARM"), "", ""},
		"a header that points nowhere": {bzImage("6.12.1-talos")[:0x300], "6.12.1-talos", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			section := func(b []byte) *io.SectionReader {
				return io.NewSectionReader(bytes.NewReader(b), 0, int64(len(b)))
			}
			p := part{name: "installer", uname: tc.uname, kernel: section(tc.kernel), initrd: section([]byte("initrd"))}
			p.read = checked{raw: hash([]byte("initrd")), initrd: imaged()}
			_, found, err := wantedOf(t).check(p, t.TempDir())
			noError(t, err)
			got := ""
			for _, err := range found {
				if m, ok := errors.AsType[*Mismatch](err); ok && m.Kind == OtherModules {
					got = m.Text
				}
			}
			if got != tc.other {
				t.Errorf("got %q, want %q", got, tc.other)
			}
		})
	}
}
