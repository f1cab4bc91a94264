package simtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/pve"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/pipeline/checkup"
)

func (c *Client) Doctor(ctx context.Context) (checkup.Result, error) {
	return connected(ctx, c, func(s *session) (checkup.Result, error) {
		px := s.machines.Proxmox.(*pve.Client)
		px.Remember()
		return checkup.Run(ctx, s.project, checkup.Sources{
			Proxmox: px, Talos: s.machines.Talos, Files: s.machines.Files, Kube: s.machines.Kube, Objects: s.machines.Objects, Images: s.images,
			Endpoints: []checkup.Endpoint{{URL: "https://pve1", Hosts: px.HostList}},
		}), nil
	})
}

func diagnosis(t *testing.T, c *Client) checkup.Result {
	t.Helper()
	return valueOf(c.Doctor(t.Context()))(t)
}

// problems lists the problems of a diagnosis, "group: what: seen".
func problems(res checkup.Result) []string {
	found := cluster.Where(res.Checks, func(c checkup.Check) bool { return c.State == checkup.Problem })
	return cluster.Each(found, func(c checkup.Check) string { return c.Group + ": " + c.What + ": " + c.Seen })
}

// TestDoctor finds nothing wrong in a healthy lab, and then each thing that is.
func TestDoctor(t *testing.T) {
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		res := diagnosis(t, lab.Client())
		require(t, res.Err() == nil, "%v:\n%s", res.Err(), strings.Join(problems(res), "\n"))
		for _, group := range []string{
			checkup.GroupProxmox, checkup.GroupPrivileges, checkup.GroupStorage, checkup.GroupTalos, checkup.GroupKubernetes,
			checkup.GroupImages, checkup.GroupNodes,
		} {
			require(t, slices.ContainsFunc(res.Checks, func(c checkup.Check) bool { return c.Group == group }),
				"nothing was looked at in group %s", group)
		}
		vmid := lab.Nodes[0].VMID
		lab.World.SetLock(vmid, "backup")
		res = diagnosis(t, lab.Client())
		c, _ := cluster.Find(res.Checks, func(c checkup.Check) bool { return strings.Contains(c.Seen, "is locked (backup)") })
		require(t, c.State == checkup.Warning && len(c.Remedy) == 1, "of the lock: %+v in %+v", c, res.Checks)
		requireSays(t, strings.Join(c.Remedy, ""), fmt.Sprintf("qm unlock %d", vmid))
		lab.World.SetLock(vmid, "")

		// Proxmox HA moves the VM of a node to balance load.
		lab.World.AddHA(world.HAResource{SID: fmt.Sprintf("vm:%d", vmid), State: "started"})
		for _, crs := range []world.CRS{{AutoRebalance: true}, {AutoRebalance: true, Scheduler: "static"}, {OnStart: true, Scheduler: "dynamic"}} {
			lab.World.Schedule(crs)
			var says []string
			for _, c := range diagnosis(t, lab.Client()).Checks {
				if c.What == "rebalancing" && c.State == checkup.Warning {
					says = append(says, c.Seen)
				}
			}
			mustBe(t, len(says) == 1 || crs.Scheduler == "" && says == nil, "%+v: doctor says %q", crs, says)
		}

		// A token that sees the VMs but not their disks' storage must not get the result that a new system disk is impossible.
		user := lab.Client()
		user.Token = cluster.Secret(sim.PoorToken)
		lab.pveum(survey.NeedsToPrune([]string{"isos"}, nil).Grants().Lines("poor@pve!lab"))
		named := lacks(diagnosis(t, user))
		for _, want := range []string{"Datastore.Audit on /storage/fast", "VM.Config.Disk on /vms", "SDN.Use on /sdn/zones/localnetwork/vmbr0"} {
			require(t, slices.Contains(named, want), "doctor names %q, and not %s", named, want)
		}

		// Whatever is unreachable, the rest is checked.
		lab.EditVM(9031, "args", "-x") // only root@pam may write it
		lab.World.SetQuorum(false)
		user = lab.Client()
		user.Reroute = func(addr string) string { return strings.ReplaceAll(addr, lab.Nodes[1].Addr.String(), "127.42.7.250") }
		lab.Replace("recast.lock", "", "")
		res = diagnosis(t, user)
		requireFault(t, res.Err(), fault.Config) // of the lock
		got := problems(res)
		requireCount(t, 3, got, "problems")
		requireSays(t, "\n"+strings.Join(got, "\n"), "\nProxmox: quorum: ", "\nTalos: wk1: ", "\nimages: lock: ")
		cp, wk := res.Nodes[0], res.Nodes[1]
		require(t, wk.Unread && strings.Contains(strings.Join(wk.Against[cluster.Recreate], "\n"), "its setting args"), "wk1: %+v", wk)
		require(t, !cp.Unread && cp.Strategy == cluster.InPlace, "cp1: %+v", cp)
	})
}

func (l *Lab) pveum(lines []string) {
	l.t.Helper()
	for _, line := range lines {
		words := strings.Fields(strings.ReplaceAll(line, "'", ""))
		mustBe(l.t, words[0] == "pveum", "no line for a shell: %q", line)
		must(l.t, errOf(l.Pveum(words[1:])))
	}
}

// TestDoctorForATokenWithNothing: a new token with exactly what doctor prints can roll, and needs all of it.
func TestDoctorForATokenWithNothing(t *testing.T) {
	inLongLab(t, sim.Options{ControlPlanes: 3, Workers: 1}, func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		strategy(cluster.Recreate)(lab)
		c := lab.Client()
		c.Token = cluster.Secret(sim.PoorToken)
		res := diagnosis(t, c)
		mustBe(t, fault.KindOf(res.Err()) == fault.Refused && len(res.Grants) != 0, "%+v:\n%q", res, problems(res))
		lab.pveum(res.Grants)
		res = diagnosis(t, c)
		mustBe(t, res.Err() == nil, "after granting what it said: %v:\n%s", res.Err(), strings.Join(problems(res), "\n"))
		requireEachIsNamed(t, lab, c)
		c.rollTo(t, planning.Policy{})
	})
}

// requireEachIsNamed removes each privilege at each path; doctor must report it.
func requireEachIsNamed(t *testing.T, lab *Lab, c *Client) {
	t.Helper()
	for _, acl := range lab.World.ACLs() {
		if acl.Who != "poor@pve!lab" {
			continue
		}
		for _, taken := range lab.World.Role(acl.Role) {
			fewer := acl
			fewer.Role = "Without"
			lab.World.AddRole(fewer.Role, slices.DeleteFunc(lab.World.Role(acl.Role), func(p string) bool { return p == taken })...)
			lab.World.Revoke(acl)
			lab.World.Grant(fewer)
			res := diagnosis(t, c)
			named := lacks(res)
			require(t, onlyNames(named, taken, acl.Path) && fault.KindOf(res.Err()) == fault.Refused,
				"without %s on %s doctor names %q: %v\n%s", taken, acl.Path, named, res.Err(), strings.Join(problems(res), "\n"))
			lab.World.Revoke(fewer)
			lab.World.Grant(acl)
		}
	}
	must(t, diagnosis(t, c).Err()) // all is granted again
}

// lacks are the missing privileges in doctor's result, "privilege on path".
func lacks(res checkup.Result) []string {
	lacks := func(c checkup.Check) bool { return c.Group == checkup.GroupPrivileges && c.State == checkup.Problem }
	return cluster.Each(cluster.Where(res.Checks, lacks), func(c checkup.Check) string { return c.What })
}

// onlyNames: doctor reports that one, at its path or, if it sees the nodes' storages and bridges, at the paths below.
func onlyNames(named []string, privilege, path string) bool {
	return len(named) > 0 && !slices.ContainsFunc(named, func(n string) bool {
		at, ok := strings.CutPrefix(n, privilege+" on ")
		return !ok || at != path && !strings.HasPrefix(at, strings.TrimSuffix(path, "/")+"/")
	})
}

// TestRegisteredTags: a new VM with such a tag needs Sys.Modify, which must be detected while the old one exists.
func TestRegisteredTags(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		lab.Patch(sim.PatchedExtension)
		lab.World.RegisterTags("talos", "other")
		requireSame(t, []string{"Sys.Modify on /"}, lacks(diagnosis(t, lab.Client())), "doctor names (-want +got)")
		requireRollRefused(t, lab, "the Proxmox token lacks privileges: Sys.Modify on /", "pveum acl modify / ")
		lab.World.AddRole("Recast", append(sim.Privileges(), "Sys.Modify")...)
		lab.Client().rollTo(t, planning.Policy{})
	})
}

func (c *Client) Explain(t *testing.T, node string) survey.Explanation {
	t.Helper()
	return valueOf(connected(t.Context(), c, func(s *session) (survey.Explanation, error) {
		_, e, err := pipeline.Explain(t.Context(), s.project, s.machines, planning.Policy{}, nil, node)
		return e, err
	}))(t)
}

// Recast plan --explain lists the steps of the roll in their order, for workers and control planes and every strategy.
func TestWhatIsExplainedIsWhatRuns(t *testing.T) {
	eachLongIn(t, func(strategy string) sim.Options {
		return sim.Options{ControlPlanes: 3, Workers: 1, Holder: strategy == "auto"}
	}, storiesOf("auto", "reimage", "in-place"), func(t *testing.T, lab *Lab, strategy string) {
		lab.setRoll("strategy: " + strategy)
		lab.Patch(everywhere)
		nodes := []string{"cp1", "wk1"}
		want, got := map[string][]string{}, map[string][]string{}
		for _, name := range nodes {
			want[name] = cluster.Each(lab.Client().Explain(t, name).Steps, func(s survey.StepOutline) string { return s.Path })
			mustBe(t, len(want[name]) >= 8, "%s: only %q are explained", name, want[name])
		}
		c := lab.Client()
		c.Emit = func(e step.Event) {
			_, node, below := planning.NodeOfStep(e.Path)
			if e.Status != step.Started && e.Status != step.Skipped || e.Kind == "" || want[node] == nil {
				return
			}
			if at := strings.Join(below, "/"); !slices.Contains(got[node], at) { // preparations run twice
				got[node] = append(got[node], at)
			}
		}
		must(t, c.roll(planning.Policy{})(t.Context()))
		for _, name := range nodes {
			requireSame(t, want[name], got[name], "%s (-explained +run)", name)
		}
	})
}

// A factory that has not noticed the patch builds the old content under the new schematic, which a person installs.
func TestDeepDriftSeesALabelThatLies(t *testing.T) {
	inLongLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		must(t, errOf(lab.Lab.Patch(t.Context(), sim.PatchedExtension, false)))
		res := valueOf(lab.Client().Lock(t.Context(), pipeline.LockOptions{Update: true}))(t)
		upgradeByHand(t, lab, res.Lock.Schematics["storage"].Schematic)
		d := requireDrift(t, lab, "wk1") // only by its configuration's install image
		for _, r := range d.Nodes[1].Reasons {
			require(t, r.Code == "install-image", "labels differ: %+v", r)
		}
		requirePatchedFile(t, lab)
		p := valueOf(lab.Client().Provenance(t.Context(), "wk1"))(t)
		files := slices.IndexFunc(p.Links, func(l observe.ProvenanceLink) bool { return l.Name == "files" })
		require(t, files >= 0 && p.Links[files].Certainty == observe.Contradicted && p.Build == p.Wanted && p.Origin == observe.FromLock,
			"provenance of wk1: %+v", p)
	})
}

// requirePatchedFile: drift --deep reports one file of the patched extension, and compares every node's.
func requirePatchedFile(t *testing.T, lab *Lab) {
	t.Helper()
	res := valueOf(lab.Client().DeepDrift(t.Context()))(t)
	var found []cluster.Reason
	for _, d := range res.Nodes {
		require(t, len(d.Unread) == 0 && strings.Contains(strings.Join(d.Notes, "\n"), "of its extensions compared"),
			"%s: unread %q, notes %q", d.Node, d.Unread, d.Notes)
		found = append(found, cluster.Where(d.Reasons, func(r cluster.Reason) bool { return r.Code == "extension-file" })...)
	}
	require(t, len(found) == 1 && strings.HasPrefix(found[0].Text, "/usr/local/sbin/iscsid of extension iscsi-tools v0.2.0: sha256:") &&
		strings.HasPrefix(found[0].Old, "sha256:") && strings.HasPrefix(found[0].New, "sha256:") && found[0].Old != found[0].New,
		"files that differ: %+v", found)
}

// upgradeByHand installs what the factory builds from a schematic, as talosctl upgrade does.
func upgradeByHand(t *testing.T, lab *Lab, schematic string) {
	t.Helper()
	s := lab.session()
	defer s.end()
	id, _, err := s.images.Factory.Register(t.Context(), schematic)
	must(t, err)
	n, before := lab.node("wk1"), lab.machine("wk1")
	repository := s.images.Factory.InstallerRepository(images.ISORequest{SchematicID: id, Platform: "nocloud"})
	lab.installBy(t, n.Name, repository+":"+before.TalosVersion)
	must(t, s.machines.Talos.Reboot(t.Context(), n.Addr, n.UUID, ""))
	for {
		m, err := cluster.ReadMachine(t.Context(), s.machines.Talos, n.Addr)
		if err == nil && m.BootID != before.BootID && m.Ready && m.Stage == "running" {
			return
		}
		time.Sleep(time.Second)
	}
}
