package journal_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
)

// TestCheckPrivate: whatever another user could have created or could change is refused.
func TestCheckPrivate(t *testing.T) {
	t.Parallel()
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, state string)
		want  string // "": accepted
	}{
		"none":         {func(t *testing.T, state string) { must(t, os.RemoveAll(state)) }, ""},
		"as is":        {func(*testing.T, string) {}, ""},
		"open to read": {func(t *testing.T, state string) { must(t, os.Chmod(state, 0o755)) }, ""},
		"what a container left": {func(t *testing.T, state string) {
			deep := filepath.Join(state, "cache", "imager", "base-1", "out")
			must(t, os.MkdirAll(deep, 0o700))
			must(t, os.Chmod(deep, 0o777))
		}, ""},
		"a link": {func(t *testing.T, state string) {
			must(t, os.Rename(state, state+"-there"))
			must(t, os.Symlink(state+"-there", state))
		}, ".recast is a symbolic link"},
		"a file": {func(t *testing.T, state string) {
			must(t, os.RemoveAll(state))
			must(t, os.WriteFile(state, nil, 0o600))
		}, ".recast is not a directory"},
		"group may write":  {func(t *testing.T, state string) { must(t, os.Chmod(state, 0o770)) }, "other users may write to .recast (mode 0770)"},
		"others may write": {func(t *testing.T, state string) { must(t, os.Chmod(filepath.Join(state, "runs", run), 0o702)) }, "may write to .recast/runs/" + run + " (mode 0702)"},
		"a linked run": {func(t *testing.T, state string) {
			must(t, os.Rename(filepath.Join(state, "runs", run), state+"-run"))
			must(t, os.Symlink(state+"-run", filepath.Join(state, "runs", run)))
		}, ".recast/runs/" + run + " is a symbolic link"},
		"a linked secret": {func(t *testing.T, state string) {
			must(t, os.Symlink("/dev/null", filepath.Join(state, "runs", run, "wk1~machine-config.secret")))
		}, "machine-config.secret is a symbolic link"},
		"a pipe": {func(t *testing.T, state string) { must(t, syscall.Mkfifo(filepath.Join(state, "reports"), 0o600)) }, ".recast/reports is neither a file nor a directory"},
		"another user's": {func(t *testing.T, state string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can change the owner")
			}
			must(t, os.Chown(filepath.Join(state, "runs"), 4242, -1))
		}, ".recast/runs belongs to user 4242, and recast runs as user 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := filepath.Join(t.TempDir(), ".recast")
			closeNow(t, open(t, filepath.Join(state, "runs"), journal.Options{}))
			c.spoil(t, state)
			err := journal.CheckPrivate(state)
			switch {
			case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), filepath.Dir(state)+"/", ""), c.want)):
				t.Errorf("err = %v", err)
			case err != nil && (fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0):
				t.Errorf("kind %v, hints %q", fault.KindOf(err), fault.Hints(err))
			}
		})
	}
}

// TestOpenFollowsNoLink: a symbolic link is not a run directory.
func TestOpenFollowsNoLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	closeNow(t, open(t, filepath.Join(dir, "there"), journal.Options{}))
	here := filepath.Join(dir, "here")
	if err := os.MkdirAll(here, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "there", run), filepath.Join(here, run)); err != nil {
		t.Fatal(err)
	}
	for _, o := range []journal.Options{{Run: run, ReadOnly: true}, {Run: run}} {
		j, err := journal.Open(here, o)
		if err == nil {
			_ = j.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
			t.Errorf("read only %t: %v", o.ReadOnly, err)
		}
	}
}
