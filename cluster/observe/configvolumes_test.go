package observe

import (
	"errors"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// reads returns one volume, whose ID names the configuration and the Talos that reads it.
type reads struct{ cluster.Maintenance }

func (reads) ConfigVolumes(text cluster.Secret, talos string) ([]cluster.ConfigVolume, error) {
	if string(text) == "bad" {
		return nil, errors.New("unreadable")
	}
	return []cluster.ConfigVolume{{ID: string(text) + " " + talos}}, nil
}

// TestConfigVolumes: volumes are read where the machine may get other ones, by whatever it boots with next.
func TestConfigVolumes(t *testing.T) {
	t.Parallel()
	same, staged := cluster.Configs{Stored: []byte("a: 1"), Active: []byte("a: 1")}, cluster.Configs{Stored: []byte("a: 2"), Active: []byte("a: 1")}
	file := &cluster.FoundFile{Volumes: []cluster.ConfigVolume{{ID: "u-data"}}}
	const wanted = "v1.14.1"
	for name, tc := range map[string]struct {
		has        cluster.Configs
		runs       string
		file       *cluster.FoundFile
		hidden     bool
		now, keeps string
		err        string
	}{
		"the same":       {has: same, runs: "v1.13.9"},
		"a file":         {has: same, runs: wanted, file: file, now: "a: 1 v1.14.1", keeps: "a: 1 v1.14.1"},
		"staged":         {has: staged, runs: "v1.13.9", now: "a: 1 v1.13.9", keeps: "a: 2 v1.14.1"},
		"an older Talos": {has: same, runs: "v1.15.0", now: "a: 1 v1.15.0", keeps: "a: 1 v1.14.1"},
		"unreadable":     {has: cluster.Configs{Stored: []byte("bad"), Active: []byte("a: 1")}, runs: wanted, now: "a: 1 v1.14.1", err: "unreadable"},
		"hidden":         {has: staged, runs: wanted, hidden: true},
	} {
		f := Found{File: tc.file, Machine: &cluster.Machine{Configs: tc.has, ConfigHidden: tc.hidden, RunningSystem: cluster.RunningSystem{TalosVersion: tc.runs}}}
		got := readConfigVolumes(reads{}, cluster.Wanted{Build: cluster.Build{TalosVersion: wanted}}, &f)
		if ids(got.Runs) != tc.now || ids(got.Keeps) != tc.keeps || (got.Err != nil) != (tc.err != "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func ids(volumes []cluster.ConfigVolume) string {
	var out []string
	for _, v := range volumes {
		out = append(out, v.ID)
	}
	return strings.Join(out, ", ")
}
