package savefile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

func says(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "r.html")
	gone := errors.New("gone")
	for _, c := range []struct {
		write func(io.Writer) error
		want  error
	}{{says("first"), nil}, {says("second"), nil}, {func(w io.Writer) error { return errors.Join(says("half")(w), gone) }, gone}} {
		if err := Write(file, c.write); !errors.Is(err, c.want) {
			t.Errorf("err = %v, want %v", err, c.want)
		}
	}
	got, err := os.ReadFile(file)
	must.Hold(t, err == nil && string(got) == "second", "%q, %v", got, err)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if files, _ := os.ReadDir(filepath.Dir(file)); len(files) != 1 {
		t.Errorf("%d files are left", len(files))
	}
}

// A file that is not regular stays what it is: for root, /dev/null is one.
func TestWriteToOtherKinds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	must.Do(t, errors.Join(syscall.Mkfifo(pipe, 0o600), os.Symlink(file, link), os.WriteFile(file, []byte("longer than before"), 0o600)))
	r, err := os.OpenFile(pipe, os.O_RDWR, 0) // as long as it is open, nobody waits for the other end
	must.Do(t, err)
	defer r.Close()
	must.Do(t, errors.Join(Write(pipe, says("whole")), Write(link, says("whole"))))
	for of, want := range map[string]os.FileMode{pipe: os.ModeNamedPipe, link: os.ModeSymlink} {
		if info, err := os.Lstat(of); err != nil || info.Mode().Type() != want {
			t.Fatalf("%s is %v now, %v", of, info.Mode(), err)
		}
	}
	got := make([]byte, len("whole"))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != "whole" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "whole" {
		t.Errorf("behind the link: %q, %v", got, err)
	}
	if err := Write(dir, says("whole")); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
}
