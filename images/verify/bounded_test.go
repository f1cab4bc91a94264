package verify

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/schematics"
)

// endless is a stream that never ends.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	clear(p)
	e.read += int64(len(p))
	return len(p), nil
}

// slack is how much may be read beyond a bound at once.
const slack = 1 << 16

const mib = 1 << 20

// TestInstallerIsBounded: an endless installer does not make its reader endless.
func TestInstallerIsBounded(t *testing.T) {
	t.Parallel()
	header := func(name string) []byte {
		var b bytes.Buffer
		if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1 << 40}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, begin := range map[string][]byte{
		"in its UKI":        header("usr/install/amd64/vmlinuz.efi"),
		"in the overlay":    header("overlay/x"),
		"in another file":   header("bin/installer"),
		"after its archive": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			v := New(nil, dir)
			v.largest = mib
			var rest endless
			_, err := v.Installer(t.Context(), schematics.Lock{Arch: "amd64"}, schematics.Locked{}, io.MultiReader(bytes.NewReader(begin), &rest), func(string) {})
			if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), "installer: more than 1 MiB, which no image of Talos has") {
				t.Errorf("error = %v (%v)", err, fault.KindOf(err))
			}
			if rest.read > mib+slack {
				t.Errorf("%d bytes were read", rest.read)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}
