package lab

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/network"
)

var labFiles = map[string][]byte{
	"recast.yaml": []byte("version: 1\n"), "talosconfig": []byte("t"), "kubeconfig": []byte("k"), envName: []byte("e"), fishName: []byte("f"),
	"schematics/default.yaml": []byte("d"), "schematics/storage.yaml": []byte("s"),
}

// put writes files below dir. A content "-> x" is a link to x.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		file := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
		_ = os.RemoveAll(file) // a link is to replace the file
		err := os.WriteFile(file, []byte(content), 0o600)
		if to, link := strings.CutPrefix(content, "-> "); link {
			_ = os.Remove(file)
			err = os.Symlink(to, file)
		}
		must.Do(t, err)
	}
}

// content is every file below dir; of a link, where it leads.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.Do(t, filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, file)
		switch {
		case err != nil || e.IsDir():
			return err
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(file)
			all[name] = "-> " + to
			return err
		}
		b, err := os.ReadFile(file)
		all[name] = string(b)
		return err
	}))
	return all
}

// writeLab plays recast lab up, until it is ended, and recast, which writes the lock and its state.
func writeLab(t *testing.T, dir string, files map[string][]byte) error {
	t.Helper()
	d, err := openDirectory(dir)
	if err != nil {
		return err
	}
	must.Do(t, d.write(files))
	if files["recast.yaml"] != nil {
		put(t, dir, map[string]string{lockName: "locked", ".recast/runs/1": "a run"})
	}
	return d.Close()
}

// TestLabIsBegunOnlyInItsOwnDirectory checks where a lab begins. What it refuses stays as it is, to the byte, and what
// it accepts keeps every file that no lab made.
func TestLabIsBegunOnlyInItsOwnDirectory(t *testing.T) {
	t.Parallel()
	bare := maps.Clone(labFiles)
	maps.DeleteFunc(bare, func(name string, _ []byte) bool { return strings.Contains(name, "yaml") })
	for name, tt := range map[string]struct {
		lab  map[string][]byte // of an earlier lab
		add  map[string]string // afterwards, by a person
		want string            // refused with that; "": begins
	}{
		"empty":                     {},
		"a project":                 {add: map[string]string{"recast.yaml": "mine", "recast.lock": "mine", ".recast/runs/1": "mine"}, want: "is not empty, and no lab made it"},
		"a git repository":          {add: map[string]string{".git/HEAD": "ref"}, want: "is not empty"},
		"one hidden file":           {add: map[string]string{".env": "x"}, want: "is not empty"},
		"a link for the mark":       {add: map[string]string{markName: "-> /etc/hostname"}, want: "is not empty"},
		"another lab.json":          {add: map[string]string{"lab.json": "{}"}, want: "is not empty"},
		"a mark that says nothing":  {add: map[string]string{markName: "", "recast.yaml": "mine"}, want: "does not say what the lab made"},
		"stopped":                   {lab: labFiles},
		"killed before it wrote":    {add: map[string]string{markName: ""}},
		"locked anew":               {lab: labFiles, add: map[string]string{"recast.lock": "newer", ".recast/locks/1": "old"}},
		"with notes":                {lab: labFiles, add: map[string]string{"notes.txt": "mine", "schematics/gpu.yaml": "mine", "backups/etcd.db": "mine"}},
		"with a changed file":       {lab: labFiles, add: map[string]string{"recast.yaml": "mine"}, want: "not as it is now: recast.yaml, .recast"},
		"with a changed schematic":  {lab: labFiles, add: map[string]string{"schematics/default.yaml": "mine"}, want: "not as it is now: schematics/default.yaml"},
		"with a file of the same":   {lab: labFiles, add: map[string]string{"recast.yaml": "-> ../real.yaml"}, want: "recast.yaml"},
		"with a link for a folder":  {lab: labFiles, add: map[string]string{"schematics": "-> /etc"}, want: "schematics/default.yaml, schematics/storage.yaml"},
		"without recast.yaml":       {lab: bare},
		"and then init":             {lab: bare, add: map[string]string{"recast.yaml": "mine"}, want: "recast.yaml"},
		"and then init and a lock":  {lab: bare, add: map[string]string{"recast.yaml": "mine", "recast.lock": "mine", ".recast/runs/1": "mine"}, want: "recast.yaml, .recast"},
		"and then only runs":        {lab: bare, add: map[string]string{".recast/runs/1": "mine"}, want: "now: .recast"},
		"empty, and then a cluster": {lab: map[string][]byte{envName: nil, fishName: nil}, add: map[string]string{"kubeconfig": "mine", "secrets.yaml": "mine"}, want: "now: kubeconfig"},
		"with another project":      {lab: labFiles, add: map[string]string{"mine.yml": "version: 1\nnodes: [{name: cp1}]\n", ".recast/etcd/etcd-1.db": "mine"}, want: "now: .recast"},
		"with a patch":              {lab: labFiles, add: map[string]string{"patch.yaml": "machine: {}\n"}},
		"state by a link":           {lab: labFiles, add: map[string]string{".recast": "-> /tmp"}, want: "now: .recast"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "x")
			must.Do(t, os.Mkdir(dir, 0o700))
			if tt.lab != nil {
				must.Do(t, writeLab(t, dir, tt.lab))
			}
			put(t, dir, tt.add)
			before := content(t, dir)
			err := writeLab(t, dir, labFiles)
			if tt.want != "" {
				must.Hold(t, err != nil && strings.Contains(err.Error(), tt.want) && fault.KindOf(err) == fault.Refused &&
					len(fault.Hints(err)) != 0, "%v, want a refusal: %s", err, tt.want)
				must.Equal(t, "it was refused, and yet", before, content(t, dir))
				return
			}
			must.Do(t, err)
			after := content(t, dir)
			for file, b := range labFiles {
				must.Equal(t, file, string(b), after[file])
			}
			for file, b := range tt.add {
				if !slices.Contains([]string{markName, lockName}, file) && !strings.HasPrefix(file, stateName) && after[file] != b {
					t.Errorf("%s: %q, a person wrote %q", file, after[file], b)
				}
			}
			_, old := after[".recast/locks/1"]
			must.Hold(t, !old && after[lockName] == "locked", "state of the earlier lab: %v", after)
		})
	}
}

func TestLabDirectoryIsOfOneLab(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "lab")
	d := must.Get(openDirectory(dir))(t)
	second := func() {
		_, err := openDirectory(dir)
		must.Hold(t, err != nil && strings.Contains(err.Error(), "a lab runs in") && fault.KindOf(err) == fault.Refused, "a second lab: %v", err)
	}
	second() // while the first one starts
	must.Do(t, d.write(labFiles))
	second()
	must.Do(t, d.Close())
	must.Do(t, writeLab(t, dir, labFiles))
}

func TestConsoleIsNoFileOfOthers(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	put(t, home, map[string]string{"mine": "text", "empty": ""})
	open := func(file string) error {
		d := must.Get(openDirectory(filepath.Join(home, "lab")))(t)
		defer d.Close()
		w, err := d.console(file)
		if err != nil {
			return err
		}
		must.Get(w.Write([]byte("boot\n")))(t)
		must.Do(t, d.write(labFiles))
		return w.Close()
	}
	err := open(filepath.Join(home, "mine"))
	must.Hold(t, fault.KindOf(err) == fault.Refused && content(t, home)["mine"] == "text", "a file of a person: %v", err)
	for _, file := range []string{"", os.DevNull, filepath.Join(home, "empty"), filepath.Join(home, "log"), filepath.Join(home, "log")} {
		must.Pass(t, open(file))
	}
	must.Equal(t, "two labs' console", "boot\nboot\n", content(t, home)["log"])
}

func TestEnvOfEveryShell(t *testing.T) {
	t.Parallel()
	files := map[string][]byte{}
	must.Do(t, addEnv(files, map[string]string{"A": `it's \1`, "B": "b"}))
	for name, want := range map[string]string{
		envName:  "export A='it'\\''s \\1'\nexport B='b'\nPATH='",
		fishName: "set -gx A 'it\\'s \\\\1'\nset -gx B 'b'\nset -gx PATH '",
	} {
		got := string(files[name])
		must.Hold(t, strings.HasPrefix(got, want), "%s: %s", name, got)
	}
}

// TestDemoNoticesAWipedDisk checks that the demo's last check finds a wiped disk.
func TestDemoNoticesAWipedDisk(t *testing.T) {
	t.Parallel()
	before := map[string]string{"data-wk1": "a", "data-wk2": "b"}
	for name, after := range map[string]map[string]string{
		"persistent disk data-wk2 has changed: c, before b": {"data-wk1": "a", "data-wk2": "c"},
		"persistent disk data-wk1 is gone":                  {"data-wk2": "b"},
	} {
		err := sameDisks(before, after)
		must.Hold(t, err != nil && err.Error() == name && fault.KindOf(err) == fault.Refused, "%v, want %s", err, name)
	}
	must.Do(t, sameDisks(before, before))
}

func TestUnharmed(t *testing.T) {
	t.Parallel()
	before := sim.State{Disks: map[string]string{"data-wk1": "a"}, Etcd: []string{"cp1", "cp2"}}
	for want, now := range map[string]sim.State{
		"":                                 before,
		"persistent disk data-wk1 is gone": {Etcd: before.Etcd},
		"the members of etcd are cp2; before: cp1, cp2":          {Disks: before.Disks, Etcd: []string{"cp2"}},
		"the members of etcd are none; before: cp1, cp2":         {Disks: before.Disks},
		"promise broken: disk data-wk1: no configuration has it": {Disks: before.Disks, Etcd: before.Etcd, Broken: []string{"disk data-wk1: no configuration has it"}},
	} {
		got := ""
		if err := unharmed(before, now); err != nil {
			got = err.Error()
		}
		must.Equal(t, "value", want, got)
	}
}

// TestDemoNoticesAWipedDiskOfTheWorld wipes a disk in a datacentre and runs the demo's check.
func TestDemoNoticesAWipedDiskOfTheWorld(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		lab := must.Get(sim.New(t.Context(), sim.Options{
			Network: network.Memory(), Prefix: "127.42.7", Registry: "127.0.0.1:5000", Factory: "127.0.0.1:8080",
		}))(t)
		defer func() {
			must.Do(t, lab.Close())
		}()
		must.Do(t, lab.Install(t.Context(), map[string]string{"default": "customization: {}", "storage": "customization: {}"}))
		before := lab.Disks()
		err := sameDisks(before, lab.Disks())
		must.Be(t, err == nil && len(before) == 2, "%d disks, nothing was done, yet: %v", len(before), err)
		wiped := lab.World.Persistent()[1]
		lab.World.Media(wiped.Volid, "pve1").Write(nil)
		must.Contain(t, "error", fmt.Sprint(sameDisks(before, lab.Disks())), wiped.Serial+" has changed")
	})
}
