package simtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/ui"
	"github.com/recast-sh/recast/pipeline"
)

// label sets a label of the node in its file.
func (f configFiles) label(t *testing.T, node, value string) {
	t.Helper()
	f.set(t, node, "nodeLabels:\n        from-file: "+value)
}

// comment changes the bytes of a file, but not its content.
func (f configFiles) comment(node string) {
	f[node] = cluster.Secret("# kept in git\n" + string(f[node]))
}

// relabel gives a node another label, as talosctl patch would.
func (l *Lab) relabel(node string) {
	l.t.Helper()
	l.editConfig(node, "machine:\n", "machine:\n    nodeLabels:\n        edited: \"true\"\n")
}

// staleFile is a file of wk1 from before the node got a label.
func staleFile(t *testing.T, lab *Lab) configFiles {
	t.Helper()
	config := lab.configOf("wk1")
	lab.relabel("wk1")
	lab.Patch(sim.PatchedExtension)
	return configFiles{"wk1": config}
}

// user is a client that has these files.
func (f configFiles) user(lab *Lab, run string) *Client {
	c := lab.as(run)
	c.MachineConfig = f.read
	return c
}

// relabelled is what a plan shows for a file with a changed label and secret.
var relabelled = []config.Change{
	{Document: "v1alpha1", Path: "machine.env.SOME_TOKEN", Kind: config.Added, Wanted: config.Hidden},
	{Document: "v1alpha1", Path: "machine.nodeLabels.copied", Kind: config.Added, Wanted: config.Hidden},
	{Document: "v1alpha1", Path: "machine.nodeLabels.edited", Kind: config.Removed, Found: "true"},
	{Document: "v1alpha1", Path: "machine.nodeLabels.from-file", Kind: config.Added, Wanted: "fresh"},
}

const hushed = "nobody-may-see-this"

// secret changes a secret in the file, in two places.
func (f configFiles) secret(node string) {
	f[node] = cluster.Secret(strings.NewReplacer(
		"    nodeLabels:\n", "    nodeLabels:\n        copied: "+hushed+"\n", "machine:\n", "machine:\n    env: {SOME_TOKEN: "+hushed+"}\n",
	).Replace(string(f[node])))
}

var onlyWorker = planning.Policy{Only: []string{"wk1"}}

// TestAFileIsShown: the plan to confirm has what a file would change, without secrets, and then the
// node gets it. What recast sets itself is not shown.
func TestAFileIsShown(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		files := staleFile(t, lab)
		files.label(t, "wk1", "fresh")
		files.secret("wk1")
		files["wk1"] = cluster.Secret(strings.ReplaceAll(string(files["wk1"]), "v1.35.4", "v1.36.1")) // a roll never changes Kubernetes
		user := files.user(lab, firstRun)
		var asked planning.NodePlan
		user.Confirm = func(p planning.Plan) (bool, error) {
			asked = p.Work()[0]
			var out bytes.Buffer
			must(t, ui.WritePlan(&out, "json", p))
			require(t, !strings.Contains(out.String(), hushed), "it has the secret:\n%s", &out)
			return true, nil
		}
		must(t, user.roll(onlyWorker)(t.Context()))
		if asked.ConfigFile == nil || !asked.ConfigFile.Applied || asked.ConfigFile.Hash == "" || asked.ConfigFile.Runs == "" {
			t.Fatalf("the plan has %+v", asked.ConfigFile)
		}
		requireSame(t, relabelled, asked.ConfigFile.Changes, "it shows (-want +got)")
		text := string(lab.configOf("wk1"))
		require(t, !strings.Contains(text, "edited") && strings.Contains(text, "from-file: fresh"),
			"the node does not run what the file says")
		requireNone(t, lab.savedConfigs(), "the journal still has")
		lab.Patch(sim.PatchedExtension)
		p := lab.planOf(user, "wk1", onlyWorker)
		require(t, p.ConfigFile != nil && len(p.ConfigFile.Changes) == 0,
			"once it runs what the file says, the plan has %+v", p.ConfigFile)
		lab.RequireIntact()
	})
}

// TestAFileThatIsNotAsShown stops the node's roll before anything is taken down.
func TestAFileThatIsNotAsShown(t *testing.T) {
	type story struct {
		meanwhile func(t *testing.T, lab *Lab, files configFiles)
		want      string
		none      bool // there is no file at first
	}
	eachLong(t, oneWorker(), map[string]story{
		"changed": {func(t *testing.T, _ *Lab, f configFiles) { f.label(t, "wk1", "fresh") }, "its file in talos.machineConfigs was changed", false},
		"gone":    {func(_ *testing.T, _ *Lab, f configFiles) { delete(f, "wk1") }, "its file in talos.machineConfigs is gone", false},
		"no YAML": {func(_ *testing.T, _ *Lab, f configFiles) { f["wk1"] = cluster.Secret("{") }, "its file in talos.machineConfigs was changed", false},
		"new":     {func(_ *testing.T, lab *Lab, f configFiles) { f["wk1"] = lab.configOf("wk1") }, "it has a file in talos.machineConfigs now", true},
		"the node's changed": {func(_ *testing.T, lab *Lab, _ configFiles) {
			lab.editConfig("wk1", "edited: \"true\"", "edited: \"false\"")
		}, "the configuration that it runs was changed", false},
		"only a comment": {func(_ *testing.T, _ *Lab, f configFiles) { f.comment("wk1") }, "", false},
	}, func(t *testing.T, lab *Lab, s story) {
		files := staleFile(t, lab)
		if s.none {
			delete(files, "wk1")
		}
		user := files.user(lab, firstRun)
		from := 0
		user.Confirm = func(planning.Plan) (bool, error) {
			s.meanwhile(t, lab, files)
			from = len(lab.Recorder.Calls())
			return true, nil
		}
		err := user.roll(onlyWorker)(t.Context())
		if s.want == "" {
			must(t, err)
			return
		}
		requireRefused(t, err, "node wk1: "+s.want+" since the plan was made: what the plan showed is no longer what would be applied")
		require(t, fault.CodeOf(err) == fault.PlanMoved, "its code is %s", fault.CodeOf(err))
		lab.requireLeftAlone(from, "wk1")
		requireNone(t, lab.savedConfigs(), "the journal has")
	})
}

// TestInPlaceKeepsToTheFile: an upgrade in place with a file that is not as the plan showed it stops
// before anything is touched.
func TestInPlaceKeepsToTheFile(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.setRoll("canary: false", "strategy: in-place")
		files := staleFile(t, lab)
		user := files.user(lab, firstRun)
		from := 0
		user.Confirm = func(planning.Plan) (bool, error) {
			files.label(t, "wk1", "fresh")
			from = len(lab.Recorder.Calls())
			return true, nil
		}
		requireRefused(t, user.roll(onlyWorker)(t.Context()), "node wk1: its file in talos.machineConfigs was changed since the plan was made")
		lab.requireLeftAlone(from, "wk1")
	})
}

// TestResumeKeepsToTheFile that was shown: on this machine it is in the journal; elsewhere the
// file must still be the same, else the old system disk is put back first.
func TestResumeKeepsToTheFile(t *testing.T) {
	type story struct {
		journal, changed bool
		first            cluster.Strategy
		says             string // text in the plan of the unfinished work
		runs             string
	}
	eachLong(t, oneWorker(), map[string]story{
		"here":                            {true, false, cluster.Recreate, "", "from-file: first"},
		"here, the file was changed":      {true, true, cluster.Recreate, "it gets the configuration that run 20000101-0000-0001 remembered", "from-file: second"}, // which it gets then
		"elsewhere":                       {false, false, cluster.Recreate, "the file is the one that run 20000101-0000-0001 remembered", "from-file: first"},
		"elsewhere, the file was changed": {false, true, cluster.PutBack, "its file in talos.machineConfigs is not the configuration that run 20000101-0000-0001 remembered", "from-file: second"},
	}, func(t *testing.T, lab *Lab, s story) {
		files := staleFile(t, lab)
		before := files["wk1"]
		files.label(t, "wk1", "first")
		first := files.user(lab, firstRun)
		first.killedAt(t, after("delete-vm"), first.roll(onlyWorker))
		if !s.journal {
			lab.loseJournal()
		}
		if s.changed {
			files["wk1"] = before
			files.label(t, "wk1", "second")
		}
		second := files.user(lab, secondRun)
		var said []string
		second.Confirm = func(p planning.Plan) (bool, error) {
			n := p.Work()[0]
			about := string(n.Strategy) + " " + n.Why + " " + strings.Join(n.Notes, " ")
			if n.ConfigFile != nil {
				about += " " + n.ConfigFile.Uncompared
			}
			said = append(said, about)
			return true, nil
		}
		must(t, second.roll(onlyWorker)(t.Context()))
		require(t, len(said) != 0 && strings.HasPrefix(said[0], string(s.first)+" ") && strings.Contains(said[0], s.says),
			"the plans were %q", said)
		require(t, strings.Contains(string(lab.configOf("wk1")), s.runs), "it does not run %q", s.runs)
		lab.RequireIntact()
	})
}

// TestResetKeepsToTheFile: a reset machine has no configuration to compare its file with; it
// gets the file of the plan, or none.
func TestResetKeepsToTheFile(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		text := lab.configOf("wk1")
		files := configFiles{"wk1": text}
		lab.reset("wk1", "STATE")
		user := files.user(lab, firstRun)
		user.Confirm = func(p planning.Plan) (bool, error) {
			n := p.Work()[0]
			f := n.ConfigFile
			require(t, n.Strategy == cluster.InstallReset && f != nil && f.Applied && f.Uncompared == "the machine has no configuration",
				"%s: %+v", n.Strategy, f)
			files.label(t, "wk1", "fresh")
			return true, nil
		}
		requireRefused(t, user.roll(onlyWorker)(t.Context()), "node wk1: its file in talos.machineConfigs was changed since the plan was made")
		files["wk1"] = text
		user.Confirm = nil
		must(t, user.roll(onlyWorker)(t.Context()))
		lab.requireServing("wk1")
	})
}

// savedConfigs are the files of machine configurations in journals here.
func (l *Lab) savedConfigs() []string {
	l.t.Helper()
	return valueOf(filepath.Glob(filepath.Join(l.Dir, ".recast", "runs", "*", "*.secret")))(l.t)
}

// TestDamagedConfigIsNotApplied changes the configuration that a killed roll has left in
// its journal: it is valid, but not the node's.
func TestDamagedConfigIsNotApplied(t *testing.T) {
	eachLong(t, oneWorker(), map[string]func([]byte) []byte{
		"other bytes": func(b []byte) []byte { return append(b, "# \n"...) },
		"cut off":     func(b []byte) []byte { return b[:len(b)/2] },
		"empty":       func([]byte) []byte { return nil },
	}, func(t *testing.T, lab *Lab, damage func([]byte) []byte) {
		lab.Patch(sim.PatchedExtension)
		lab.Client().rollKilled(after("delete-vm"), policyFor("wk1"))
		files := lab.savedConfigs()
		mustBe(t, len(files) == 1, "the journal has %q", files)
		config := readFile(t, files[0])
		must(t, os.WriteFile(files[0], damage(config), 0o600))

		second := lab.as("20000101-0000-beef")
		p := lab.planOf(second, "wk1", planning.Policy{})
		if p.Strategy != cluster.PutBack || !strings.Contains(p.Why, "its old system disk is put back: the machine configuration in the journal is damaged: its SHA-256 is ") {
			t.Errorf("planned as %s: %s", p.Strategy, p.Why)
		}
		second.rollTo(t, policyFor("wk1"))
		requireNone(t, lab.savedConfigs(), "the journal still has")
	})
}

// TestRecordWithoutASum takes the checksum out of the record of a killed roll: the journal's
// configuration is not used unverified.
func TestRecordWithoutASum(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.Client().rollKilled(after("delete-vm"), policyFor("wk1"))
		lab.editRecord("wk1", func(rec *parking.Record) { rec.Config = "" })
		second := lab.as("20000101-0000-beef")
		requirePlanned(t, lab.planOf(second, "wk1", planning.Policy{}), cluster.PutBack, "says none")
		second.rollTo(t, policyFor("wk1"))
		lab.RequireIntact()
	})
}

// TestConfigsAreForgotten checks that no machine configurations are left in the journals
// after each way in which a node is completed.
func TestConfigsAreForgotten(t *testing.T) {
	only := policyFor("wk1")
	eachLong(t, oneWorker(), map[string]func(t *testing.T, lab *Lab){
		"roll": func(t *testing.T, lab *Lab) {
			var during int
			c := lab.Client().hears(func(e step.Event) {
				if before("bring-up/configure").is(e) {
					during = len(lab.savedConfigs())
				}
			})
			must(t, c.roll(only)(t.Context()))
			require(t, during == 1, "during the roll there were %d", during)
		},
		"roll in place": func(t *testing.T, lab *Lab) {
			lab.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: in-place\n")
			must(t, lab.Client().roll(only)(t.Context()))
		},
		"resumed roll": func(t *testing.T, lab *Lab) {
			lab.Client().rollKilled(after("delete-vm"), only)
			must(t, lab.Client().roll(only)(t.Context()))
		},
		"recover": func(t *testing.T, lab *Lab) {
			lab.Client().rollKilled(after("delete-vm"), only)
			must(t, lab.Client().giveUp("wk1")(t.Context()))
		},
		"roll killed at its end, another with nothing to do": func(t *testing.T, lab *Lab) {
			lab.Client().rollKilled(moment{journal: "delete wk1/machine-config"}, only)
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
		requireNone(t, lab.savedConfigs(), "the journals still have")
	})
}

// badInput is a user's or the world's invalid input to a roll.
type badInput struct {
	spoil func(l *Lab)
	kind  fault.Kind
	text  string // of the error: place and problem
	hint  string // the remedy; "" if the message contains it
}

func badInputs() map[string]badInput {
	edit := func(file, old, fresh string) func(*Lab) { return func(l *Lab) { l.Replace(file, old, fresh) } }
	return map[string]badInput{
		"unknown key": {edit("recast.yaml", "settle: 2s", "setle: 2s"), fault.Config, "recast.yaml:21:3: roll.setle: ", ""},
		"missing file": {
			edit("recast.yaml", "schematics/storage.yaml", "schematics/nowhere.yaml"), fault.Config, "schematics/nowhere.yaml", "",
		},
		"unknown extension": {
			func(l *Lab) {
				l.Replace("schematics/storage.yaml", "siderolabs/iscsi-tools", "siderolabs/iscsi-tool")
				_, err := l.Client().Lock(l.t.Context(), pipeline.LockOptions{})
				requireFault(l.t, err, fault.Config, "schematics/storage.yaml:5:9", "siderolabs/iscsi-tools")
			}, fault.Config, "schematic storage has changed since it was locked", "recast lock",
		},
		"no lock": {edit("recast.lock", "", "removed"), fault.Config, "recast.lock", "recast lock"},
		"a node that matches no VM": {
			func(l *Lab) { l.EditVM(9031, "smbios1", "uuid=00000000-0000-4000-8000-000000000000") },
			fault.Config, "node wk1: no VM has its SMBIOS UUID 5ec0ffee-0000-4000-8000-000000009031", "VM.Audit",
		},
		"a node that matches two VMs": {
			func(l *Lab) {
				l.DefineVM(9050, map[string]string{"name": "clone", "smbios1": "uuid=5EC0FFEE-0000-4000-8000-000000009031"})
			},
			fault.Config, "node wk1: 2 VMs have its SMBIOS UUID", "a UUID of its own",
		},
		"a VMID of another VM": {
			edit("recast.yaml", "vmid: 9031", "vmid: 9032"), fault.Refused, "node wk1: its UUID 5ec0ffee-0000-4000-8000-000000009031 belongs to VM 9031", "nodes[].vmid",
		},
		"a node that Kubernetes does not know": {
			edit("recast.yaml", "{name: wk1,", "{name: wk7,"), fault.Config, "node wk7: Kubernetes knows no node of that name", "cp1 wk1",
		},
		"full storage": {
			func(l *Lab) { l.World.FillStorage(sim.ISOStorage) }, fault.Refused, "isos", "",
		},
		"an ACL entry that would go with the VM": {
			func(l *Lab) {
				l.Replace("recast.yaml", "roll:\n", "roll:\n  strategy: recreate\n")
				l.World.Grant(world.ACL{Path: "/vms/9031", Who: "recast@pve!lab", Role: "Recast", Propagate: true})
			}, fault.Refused, "wk1: the VM has an ACL entry at /vms/9031", "--exclude",
		},
		"no quorum": {
			func(l *Lab) { l.World.SetQuorum(false) }, fault.Refused, "no quorum", "pvecm status",
		},
	}
}

// TestBadInput rolls with an invalid input: there is one clear error with its remedy, and
// nothing in the datacentre has changed.
func TestBadInput(t *testing.T) {
	for name, bad := range badInputs() {
		t.Run(name, func(t *testing.T) {
			if name != "no quorum" {
				long(t)
			}
			inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
				lab.Patch(sim.PatchedExtension)
				bad.spoil(lab)
				before := len(lab.Recorder.Calls())
				requireFault(t, lab.Client().roll(planning.Policy{})(t.Context()), bad.kind, bad.text, bad.hint)
				lab.requireNothingSent(before, "factory")
				lab.RequireIntact()
			})
		})
	}
}

// ofClaim says whether a request only creates, beats or removes the claim.
func ofClaim(call record.Call) bool {
	const vms = "/api2/json/nodes/pve1/qemu"
	return call.Proto == "proxmox" && (call.Path == vms && call.Method == "POST" || strings.HasPrefix(call.Path, vms+"/9000"))
}
