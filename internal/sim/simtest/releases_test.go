package simtest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rogpeppe/go-internal/txtar"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

var writeRelease = flag.String("releases.write", "", "write what this recast leaves behind at every state, as that of a release: v0.2.0")

const releaseDir = "testdata/releases"

// leaving is a state in which a run leaves its node: killed, or ended.
type leaving struct {
	node    string
	options sim.Options
	prepare func(*Lab)
	run     func(t *testing.T, lab *Lab) // until it is killed, or to its end
	// ways are those in which today's recast goes on.
	ways []string
	kept int // old system disks that are parked after another roll
	// alone says that no other node is stale.
	alone bool
}

// The ways of going on. "roll" and "undo" have the journal, "elsewhere" is a roll on another machine.
var forward, allWays = []string{"roll", "elsewhere"}, []string{"roll", "elsewhere", "undo"}

// leavings are the states of which every release has left a file, by its name.
func leavings() map[string]leaving {
	rolled := func(node string, o sim.Options, s cluster.Strategy, at moment, ways []string, more ...func(*Lab)) leaving {
		kept := 1
		if s == cluster.InPlace {
			kept = 0
		}
		return leaving{node, o, func(lab *Lab) {
			lab.setRoll("strategy: " + string(s))
			for _, prepare := range more {
				prepare(lab)
			}
			lab.Patch(everywhere)
		}, func(t *testing.T, lab *Lab) { lab.as(firstRun).rollKilled(at, policyFor(node)) }, ways, kept, false}
	}
	one, three, prepared := oneWorker(), sim.Options{ControlPlanes: 3, Workers: 1}, func(lab *Lab) { lab.BootsDisks("disk") }
	impatient := func(lab *Lab) { lab.runLonghorn("wk1", "wk2", "wk3"); lab.isImpatient() }
	done := func(then func(t *testing.T, lab *Lab), ways ...string) leaving {
		return leaving{"wk1", one, func(lab *Lab) { lab.Patch(everywhere) }, func(t *testing.T, lab *Lab) {
			must(t, lab.as(firstRun).roll(onlyWorker)(t.Context()))
			then(t, lab)
		}, ways, 1, false}
	}
	shaped := func(node string, prepare func(*Lab), at moment, ways []string) leaving {
		return leaving{node, one, func(lab *Lab) { lab.allowShape(); prepare(lab) }, func(t *testing.T, lab *Lab) {
			lab.as(firstRun).rollKilled(at, policyFor(node))
		}, ways, 0, true}
	}
	return map[string]leaving{
		"recreate-drained":                rolled("wk1", one, cluster.Recreate, after("take-down/drain"), allWays),
		"recreate-stopped":                rolled("wk1", one, cluster.Recreate, after("take-down/stop"), allWays),
		"recreate-handing-over":           rolled("wk1", one, cluster.Recreate, onServer("/qemu/9031/move_disk POST"), allWays),
		"recreate-parked":                 rolled("wk1", one, cluster.Recreate, after("park/scsi1"), allWays),
		"recreate-deleted":                rolled("wk1", one, cluster.Recreate, after("delete-vm"), allWays),
		"recreate-created":                rolled("wk1", one, cluster.Recreate, after("create-vm"), allWays),
		"recreate-attached":               rolled("wk1", one, cluster.Recreate, after("attach/scsi1"), allWays),
		"recreate-blank":                  rolled("wk1", one, cluster.Recreate, before("bring-up/configure"), allWays),
		"recreate-configured":             rolled("wk1", one, cluster.Recreate, after("bring-up/configure"), allWays),
		"recreate-serves":                 rolled("wk1", one, cluster.Recreate, before("finish/keep"), allWays),
		"recreate-holder":                 rolled("wk1", sim.Options{Workers: 1, Holder: true}, cluster.Recreate, after("delete-vm"), allWays),
		"recreate-held-storage":           rolled("wk1", sim.Options{Workers: 3}, cluster.Recreate, before("take-down/delete-vm"), allWays, impatient),
		"recreate-control-plane-left":     rolled("cp2", three, cluster.Recreate, onServer("EtcdLeaveCluster"), forward),
		"recreate-control-plane-deleted":  rolled("cp2", three, cluster.Recreate, after("delete-vm"), allWays),
		"reimage-blank":                   rolled("wk1", one, cluster.Reimage, after("blank-disk"), allWays),
		"prepared-disk":                   rolled("wk1", one, cluster.Recreate, after("prepare-disk"), allWays, prepared),
		"prepared-deleted":                rolled("wk1", one, cluster.Recreate, after("delete-vm"), allWays, prepared),
		"in-place-reboots":                rolled("wk1", one, cluster.InPlace, onServer("/Reboot"), forward),
		"in-place-reboots-claim-in-lease": leaseHeld(rolled("wk1", three, cluster.InPlace, onServer("/Reboot"), forward)),
		"undo-parked":                     undone(rolled("wk1", one, cluster.Recreate, before("finish/keep"), allWays)),
		"rollback-restored": done(func(t *testing.T, lab *Lab) {
			c := lab.as(secondRun)
			c.killedAt(t, after("restore-disk"), c.goBack("wk1"))
		}, forward...),
		"create-created": shaped("wk2", func(lab *Lab) { lab.addNode("wk2", "wk1", "") }, after("create-vm"), forward),
		"reshape-set": shaped("wk1", func(lab *Lab) {
			lab.shape("wk1", "memory: 6144, disks: [{slot: scsi1, cache: writeback}]")
		}, onServer("/config PUT"), allWays),
		"done": done(func(*testing.T, *Lab) {}, "roll", "rollback"),
	}
}

func leaseHeld(s leaving) leaving {
	s.run = func(t *testing.T, lab *Lab) {
		c := lab.as(firstRun)
		c.Token = lab.poorToken()
		c.killedAt(t, onServer("/Reboot"), c.roll(onlyWorker))
	}
	return s
}

// undone is the state in which another run has begun to undo it.
func undone(s leaving) leaving {
	killed := s.run
	s.run = func(t *testing.T, lab *Lab) {
		killed(t, lab)
		c := lab.as(secondRun)
		c.killedAt(t, after("put-back/park-new"), c.giveUp(s.node))
	}
	return s
}

// lab is a lab in that state, by today's recast, with its random names and its machines before.
func (s leaving) lab(t *testing.T) (lab *Lab, names map[string]string, before string) {
	lab = New(t, s.options)
	s.prepare(lab)
	if *writeRelease == "" { // v0.1.0 uploaded under the names in the lock; replay writes its recast.yaml
		lab.Replace("recast.yaml", "proxmox:\n", "proxmox:\n  publish: {verify: warn}\n")
	}
	names, before = lab.namesBefore(), lab.machinesDump()
	s.run(t, lab)
	lab.namesAfter(names)
	return lab, names, before
}

// TestReleases goes on with what the runs of every release have left: its recast.yaml and recast.lock, and byte for
// byte what it had written into Proxmox, on Nodes and into its journal, but for the names that are random in a lab.
// Today's recast brings the disks where they were then, and replay fails unless they are there. Not proven by that
// is what a release makes of servers: machine configurations and the lab are today's. The states of a new release:
//
//	go test ./internal/sim/simtest -run TestReleases -releases.write v0.2.0
func TestReleases(t *testing.T) {
	if *writeRelease != "" {
		writeStates(t, *writeRelease)
		return
	}
	files := valueOf(filepath.Glob(filepath.Join(releaseDir, "*", "*.txtar")))(t)
	mustBe(t, len(files) != 0, "there is no release")
	states := leavings()
	for _, file := range files {
		state := strings.TrimSuffix(filepath.Base(file), ".txtar")
		s, known := states[state]
		mustBe(t, known, "%s: no test brings a lab there", file)
		for _, way := range s.ways {
			t.Run(filepath.Base(filepath.Dir(file))+"/"+state+"/"+way, func(t *testing.T) {
				if state != "recreate-deleted" || way != "roll" {
					long(t)
				}
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					lab, names, before := s.lab(t)
					lab.replay(lab.released(file, names))
					s.goOn(t, lab, way, before)
				})
			})
		}
	}
	t.Attr("states", strconv.Itoa(len(files)))
}

// goOn has another process, which can't see the first one, finish that.
func (s leaving) goOn(t *testing.T, lab *Lab, way, before string) {
	if way == "elsewhere" {
		lab.loseJournal()
	}
	c := lab.as(thirdRun)
	c.Elsewhere = true
	do, stale := c.roll(policyFor(s.node)), lab.others(s.node)
	switch way {
	case "undo":
		do = c.giveUp(s.node)
	case "rollback":
		do, stale = c.goBack(s.node), lab.others("")
	}
	if s.alone {
		stale = nil
	}
	must(t, do(t.Context()))
	if lab.waitSetting() != nil {
		lab.requireWaits("30", "")
	}
	if way == "undo" {
		lab.requireRecovered(before)
		return
	}
	requireInSync(t, lab, stale...)
	lab.requireServing(s.node)
	lab.requireKept(s.kept)
	lab.requireEtcd()
}

func writeStates(t *testing.T, release string) {
	mustBe(t, !slices.Contains(released(t), release), "what %s has written does not change any more", release)
	dir := filepath.Join(releaseDir, release)
	must(t, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)))
	for name, s := range leavings() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lab, names, _ := s.lab(t)
				must(t, os.WriteFile(filepath.Join(dir, name+".txtar"), archive(names, lab.traces()), 0o644))
			})
		})
	}
}

// released are the releases of the changelog.
func released(t *testing.T) (all []string) {
	dated := regexp.MustCompile(`(?m)^## (v\S+) — \d{4}-\d\d-\d\d$`)
	matches := dated.FindAllStringSubmatch(string(readFile(t, "../../../CHANGELOG.md")), -1)
	return ofEach(matches, func(m []string) string { return m[1] })
}

// TestEveryReleaseIsTested: a release of the changelog has its states here, all of those that its recast knew.
func TestEveryReleaseIsTested(t *testing.T) {
	t.Parallel()
	want := released(t)
	if len(want) == 0 {
		want = []string{"v0.1.0"} // the first one is to come: its states are what today's recast leaves
	}
	slices.Sort(want)
	got := ofEach(valueOf(os.ReadDir(releaseDir))(t), os.DirEntry.Name) // sorted
	requireSame(t, want, got, "releases (-CHANGELOG.md +%s), see docs/notes/release.md", releaseDir)
}

// TestNewerRecastHasBeenHere: a newer recast's record stops every other until that recast has finished it.
func TestNewerRecastHasBeenHere(t *testing.T) {
	long(t)
	eachInBubble(t, map[string]string{
		"another version": `{"version":99,`, "another field": `{"also":true,"version":1,`,
	}, func(t *testing.T, with string) {
		const park = 9002
		s := leavings()["recreate-deleted"]
		lab, _, _ := s.lab(t)
		written := lab.vmConfig(park)["description"]
		lab.World.WriteByHand(park, "description", strings.Replace(written, `{"version":1,`, with, 1))
		before := lab.withoutClaim()
		c := lab.as(thirdRun)
		c.Elsewhere = true
		for _, do := range []func(context.Context) error{c.roll(onlyWorker), c.giveUp("wk1"), c.goBack("wk1")} {
			requireFault(t, do(t.Context()), fault.Refused, "newer")
		}
		requireSame(t, before, lab.withoutClaim(), "it has changed something")
		lab.World.WriteByHand(park, "description", written)
		s.goOn(t, lab, "roll", "")
	})
}

// withoutClaim are the traces apart from the claim, which the next run takes over and gives back.
func (l *Lab) withoutClaim() traces {
	found := l.traces()
	maps.DeleteFunc(found, func(name, _ string) bool { return strings.HasPrefix(name, "vm/9000") })
	return found
}

// traces are what a run of recast has written, by name: configurations of VMs ("vm/9004"), their descriptions
// ("vm/9004.description"), marks of Nodes ("node/wk1"), the claim in Kubernetes ("lease"), what it remembers of a setting of
// Longhorn ("hold"), and files of the working directory ("work/…"), without secrets, images and snapshots.
type traces map[string]string

func (l *Lab) traces() traces {
	found := traces{}
	for _, vm := range l.World.VMs() {
		name := fmt.Sprintf("vm/%d", vm.ID)
		found[name+".description"] = vm.Config["description"]
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			if key != "description" && !l.madeUp(vm.ID, key) {
				found[name] += key + ": " + vm.Config[key] + "\n"
			}
		}
	}
	for _, n := range l.Nodes {
		if node, err := l.Kube.Node(l.t.Context(), n.Name); err == nil {
			found["node/"+n.Name] = marksOf(node)
		}
	}
	if lease := l.claimLease(); lease != nil {
		found["lease"] = lease.Annotations[claimAnnotation]
	}
	if setting := l.waitSetting(); setting != nil {
		found["hold"] = setting.GetAnnotations()["recast.dev/hold"]
	}
	for _, name := range []string{"recast.yaml", "recast.lock"} {
		found["work/"+name] = string(l.Read(name))
	}
	maps.Copy(found, l.stateFiles("runs"))
	maps.Copy(found, l.stateFiles("locks"))
	return found
}

func (l *Lab) madeUp(id int, key string) bool {
	node := slices.ContainsFunc(l.Nodes, func(n sim.Node) bool { return n.VMID == id })
	return key == "vmgenid" || key == "meta" || key == "smbios1" && !node
}

// stateFiles are the files below .recast/dir, without secrets and the locks of processes.
func (l *Lab) stateFiles(dir string) traces {
	found := traces{}
	must(l.t, fs.WalkDir(os.DirFS(l.Dir), path.Join(".recast", dir), func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.Type().IsRegular() && !strings.HasSuffix(name, ".secret") && (dir == "locks" || !strings.HasSuffix(name, ".lock")) {
			found["work/"+name] = string(l.Read(name))
		}
		return err
	}))
	return found
}

const claimAnnotation = "recast.dev/claim"

func (l *Lab) claimLease() *coordinationv1.Lease {
	o, err := l.Kube.Store().Get(l.t.Context(), store.Leases(), "kube-system", "recast")
	if err != nil {
		return nil // there is none
	}
	return o.(*coordinationv1.Lease)
}

// waitSetting is the setting of Longhorn that a roll changes; nil if there is no Longhorn.
func (l *Lab) waitSetting() *unstructured.Unstructured {
	o, err := l.Kube.Store().Get(l.t.Context(), longhornSettings.GroupVersionResource, longhornSpace, waitSetting)
	if err != nil {
		return nil
	}
	return o.(*unstructured.Unstructured)
}

func marksOf(node *corev1.Node) string {
	lines := []string{fmt.Sprintf("unschedulable: %t", node.Spec.Unschedulable)}
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if strings.HasPrefix(key, "recast.dev/") {
			lines = append(lines, key+": "+node.Annotations[key])
		}
	}
	return strings.Join(lines, "\n")
}

// namesBefore are names in a lab that are random, as they are before a run.
func (l *Lab) namesBefore() map[string]string {
	names := map[string]string{"directory": l.Dir}
	for _, n := range l.Nodes {
		node := l.kubeNode(n.Name)
		names["boot ID of "+n.Name], names["UID of "+n.Name] = node.Status.NodeInfo.BootID, string(node.UID)
		for _, v := range l.machine(n.Name).Volumes {
			names["partition "+v.Device+" of "+n.Name], names["filesystem "+v.Device+" of "+n.Name] = v.PartitionUUID, v.FilesystemUUID
		}
	}
	maps.DeleteFunc(names, func(_, name string) bool { return name == "" })
	for _, m := range l.EtcdMembers() {
		names["etcd member "+m.Name] = strconv.FormatUint(valueOf(strconv.ParseUint(m.ID, 16, 64))(l.t), 10)
	}
	return names
}

// namesAfter adds those that a run has made, or that are in files.
func (l *Lab) namesAfter(names map[string]string) {
	for name, pattern := range map[string]string{
		"recast.yaml": `(?m)^  (fingerprint): "(.*)"`,
		"recast.lock": `(?m)^ *(signer|checksum): (?:sha256-)?(.*)`,
	} {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(l.Read(name)), -1) {
			names[m[1]] = m[2]
		}
	}
	for name, text := range l.stateFiles("runs") {
		var remembered struct{ Old struct{ Config string } }
		if strings.HasSuffix(name, "~memory.json") && json.Unmarshal([]byte(text), &remembered) == nil && remembered.Old.Config != "" {
			names["hash of the configuration in "+path.Base(name)] = remembered.Old.Config
		}
	}
	for _, vm := range l.World.VMs() {
		if _, mac, ok := strings.Cut(vm.Config["net0"], "="); ok {
			names[fmt.Sprintf("MAC address of VM %d", vm.ID)], _, _ = strings.Cut(mac, ",")
		}
		if _, sku, ok := strings.Cut(vm.Config["smbios1"], "sku="); ok {
			names[fmt.Sprintf("SKU number of VM %d", vm.ID)] = sku
		}
	}
	for _, file := range valueOf(filepath.Glob(filepath.Join(l.Dir, ".recast", "runs", "*", "*.secret")))(l.t) {
		names["sum of "+filepath.Base(file)] = fmt.Sprintf("%x", sha256.Sum256(readFile(l.t, file)))
	}
}

func archive(names map[string]string, found traces) []byte {
	var a txtar.Archive
	dir := names["directory"]
	names["directory"] = "/home/me/lab"
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a.Comment = fmt.Appendf(a.Comment, "%s: %s\n", name, names[name])
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(strings.TrimSuffix(strings.ReplaceAll(found[name], dir, names["directory"]), "\n") + "\n")})
	}
	return txtar.Format(&a)
}

// released are the traces of a release, with the names of this lab instead of its own.
func (l *Lab) released(file string, names map[string]string) traces {
	a := valueOf(txtar.ParseFile(file))(l.t)
	var pairs []string
	for line := range strings.Lines(string(a.Comment)) {
		name, old, ok := strings.Cut(strings.TrimSpace(line), ": ")
		now, there := names[name]
		mustBe(l.t, ok && there, "%s: %q is no name of this lab: %v", file, line, names)
		pairs = append(pairs, old, now)
	}
	rename := strings.NewReplacer(pairs...)
	found := traces{}
	for _, f := range a.Files {
		text := regexp.MustCompile(`"memory":"([^"]+)"`).ReplaceAllStringFunc(string(f.Data), func(s string) string {
			return `"memory":"` + repacked(l, strings.TrimSuffix(strings.TrimPrefix(s, `"memory":"`), `"`), rename) + `"`
		})
		found[f.Name] = rename.Replace(text)
	}
	return found
}

func repacked(l *Lab, packed string, rename *strings.Replacer) string {
	b := valueOf(base64.RawURLEncoding.DecodeString(packed))(l.t)
	r := valueOf(gzip.NewReader(bytes.NewReader(b)))(l.t)
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	must(l.t, errOf(rename.WriteString(w, string(valueOf(io.ReadAll(r))(l.t)))))
	must(l.t, w.Close())
	return base64.RawURLEncoding.EncodeToString(out.Bytes())
}

// replay replaces all that today's recast has written by what the release had written at the same moment. What only
// Proxmox and Kubernetes have must be there already: the disks must be where the release had moved them.
func (l *Lab) replay(release traces) {
	ours := l.traces()
	for name := range ours {
		_, there := release[name]
		switch file, isFile := strings.CutPrefix(name, "work/"); {
		case there:
		case isFile:
			l.Replace(file, "", "") // it did not write such a file
		default:
			l.t.Errorf("%s is here, and was not then", name)
		}
	}
	for name, text := range release {
		kind, what, _ := strings.Cut(name, "/")
		now, there := ours[name]
		var id int
		switch _, err := fmt.Sscanf(what, "%d.description", &id); {
		case kind == "work":
			l.Write(what, []byte(text))
		case !there:
			l.t.Errorf("%s was there then, and is not here", name)
		case kind == "vm" && err == nil:
			l.World.WriteByHand(id, "description", strings.TrimSuffix(text, "\n"))
		case kind == "node":
			l.mark(what, text)
		case kind == "hold":
			value, _ := l.waits()
			l.setWaits(value, strings.TrimSpace(text))
		case kind == "lease":
			lease := l.claimLease()
			lease.Annotations[claimAnnotation] = strings.TrimSpace(text)
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Leases(), lease, store.Main)))
		case strings.TrimSpace(now) != strings.TrimSpace(text):
			l.t.Errorf("%s is not as it was then: have the lab bring it there, or the state can't be replayed:\n%s\nthen:\n%s", name, now, text)
		}
	}
	mustBe(l.t, !l.t.Failed(), "the state can't be replayed")
}

func (l *Lab) mark(name, marks string) {
	node := l.kubeNode(name)
	maps.DeleteFunc(node.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, "recast.dev/") })
	for line := range strings.Lines(marks) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if key == "unschedulable" {
			node.Spec.Unschedulable = value == "true"
			continue
		}
		node.Annotations[key] = value
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}
