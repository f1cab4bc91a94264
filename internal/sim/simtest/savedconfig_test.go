package simtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/step"
)

// savedConfigs are the files of machine configurations in journals here.
func (l *Lab) savedConfigs() []string {
	l.t.Helper()
	files, err := filepath.Glob(filepath.Join(l.Dir, ".recast", "runs", "*", "*.secret"))
	must(l.t, err)
	return files
}

// TestDamagedConfigIsNotApplied changes the configuration that a killed roll has left in
// its journal: it is valid, but not the node's.
func TestDamagedConfigIsNotApplied(t *testing.T) {
	long(t)
	eachInLab(t, oneWorker(), map[string]func([]byte) []byte{
		"other bytes": func(b []byte) []byte { return append(b, "# \n"...) },
		"cut off":     func(b []byte) []byte { return b[:len(b)/2] },
		"empty":       func([]byte) []byte { return nil },
	}, func(t *testing.T, lab *Lab, damage func([]byte) []byte) {
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.killedAt(t, after("delete-vm"), c.roll(policyFor("wk1")))
		files := lab.savedConfigs()
		if len(files) != 1 {
			t.Fatalf("the journal has %q", files)
		}
		config, err := os.ReadFile(files[0])
		must(t, err)
		must(t, os.WriteFile(files[0], damage(config), 0o600))

		second := lab.as("20000101-0000-beef")
		p := lab.planOf(second, "wk1", planning.Policy{})
		if p.Strategy != cluster.PutBack || !strings.Contains(p.Why, "its old system disk is put back: the machine configuration in the journal is damaged: its SHA-256 is ") {
			t.Errorf("planned as %s: %s", p.Strategy, p.Why)
		}
		must(t, second.roll(policyFor("wk1"))(t.Context()))
		requireInSync(t, lab)
		if left := lab.savedConfigs(); len(left) > 0 {
			t.Errorf("the journal still has %q", left)
		}
	})
}

// TestRecordWithoutASum takes the checksum out of the record of a killed roll: the journal's
// configuration is not used unverified.
func TestRecordWithoutASum(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		c := lab.Client()
		c.killedAt(t, after("delete-vm"), c.roll(policyFor("wk1")))
		lab.editRecord("wk1", func(rec *parking.Record) { rec.Config = "" })
		second := lab.as("20000101-0000-beef")
		if p := lab.planOf(second, "wk1", planning.Policy{}); p.Strategy != cluster.PutBack || !strings.Contains(p.Why, "says none") {
			t.Errorf("planned as %s: %s", p.Strategy, p.Why)
		}
		must(t, second.roll(policyFor("wk1"))(t.Context()))
		requireInSync(t, lab)
		lab.RequireIntact()
	})
}

// TestConfigsAreForgotten checks that no machine configurations are left in the journals
// after each way in which a node is completed.
func TestConfigsAreForgotten(t *testing.T) {
	long(t)
	only := policyFor("wk1")
	eachInLab(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"roll": func(t *testing.T, lab *Lab) {
			var during int
			c := lab.Client()
			c.Emit = func(e step.Event) {
				if before("bring-up/configure").is(e) {
					during = len(lab.savedConfigs())
				}
			}
			must(t, c.roll(only)(t.Context()))
			if during != 1 {
				t.Errorf("during the roll there were %d", during)
			}
		},
		"roll in place": func(t *testing.T, lab *Lab) {
			lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: in-place\n")
			must(t, lab.Client().roll(only)(t.Context()))
		},
		"resumed roll": func(t *testing.T, lab *Lab) {
			c := lab.Client()
			c.killedAt(t, after("delete-vm"), c.roll(only))
			must(t, lab.Client().roll(only)(t.Context()))
		},
		"recover": func(t *testing.T, lab *Lab) {
			c := lab.Client()
			c.killedAt(t, after("delete-vm"), c.roll(only))
			must(t, lab.Client().giveUp("wk1")(t.Context()))
		},
		"roll killed at its end, another with nothing to do": func(t *testing.T, lab *Lab) {
			c := lab.Client()
			c.killedAt(t, moment{journal: "delete wk1/machine-config"}, c.roll(only))
			must(t, lab.as("20000101-0000-beef").roll(only)(t.Context()))
		},
		"roll killed before the record, rollback of another": func(t *testing.T, lab *Lab) {
			must(t, lab.Client().roll(only)(t.Context()))
			lab.Patch(sim.PatchedExtension)
			c := lab.as("20000101-0000-beef")
			c.killedAt(t, moment{journal: "write wk1/memory"}, c.roll(only))
			third := lab.as("20000101-0000-cafe")
			must(t, third.goBack("wk1")(t.Context()))
		},
	}, func(t *testing.T, lab *Lab, end func(t *testing.T, lab *Lab)) {
		lab.Patch(sim.PatchedExtension)
		end(t, lab)
		if left := lab.savedConfigs(); len(left) > 0 {
			t.Errorf("the journals still have %q", left)
		}
	})
}
