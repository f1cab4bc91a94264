package simtest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/layouts"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// layoutLab is a lab of a layout whose node is stale.
type layoutLab struct {
	*Lab
	of   layouts.Layout
	node sim.Node
}

// newLayoutLab starts a layout's lab; secrets are those of another lab of it, nil: new ones.
func newLayoutLab(t *testing.T, layout layouts.Layout, secrets *talosapi.Cluster) *layoutLab {
	t.Helper()
	o := layout.Options()
	o.Talos = secrets
	l := &layoutLab{Lab: New(t, o), of: layout}
	l.node = l.Lab.node(layout.Node)
	l.World.AddRole("Recast", append(sim.Privileges(), "Mapping.Use", "Sys.Console", "Sys.Modify")...) // as doctor would advise
	must(t, layout.Furnish(t.Context(), l.Lab.Lab))
	time.Sleep(time.Minute) // pods start
	l.protect()
	l.line(layout.Recast)
	extension := sim.PatchedExtension
	if l.node.ControlPlane {
		extension = sim.CommonExtension
	}
	l.Patch(extension)
	return l
}

// line adds to the node's line in recast.yaml.
func (l *layoutLab) line(more string) {
	l.t.Helper()
	if more != "" {
		l.Replace("recast.yaml", "{name: "+l.of.Node+",", "{name: "+l.of.Node+", "+more+",")
	}
}

// protect makes every disk of the node except the system disk a protected one.
func (l *layoutLab) protect() {
	l.t.Helper()
	vm := l.vm()
	for _, key := range layouts.Persistent(vm.Config, l.node.SystemDrive()) {
		volid, _, _ := strings.Cut(vm.Config[key], ",")
		if strings.HasPrefix(volid, "/") {
			continue // a device of the host, which outlives the VM
		}
		media := l.World.Media(volid, l.node.Host)
		mustBe(l.t, media != nil, "there is no %s", volid)
		d := world.Protected{Serial: l.of.Name + " " + key, Media: media, Held: !strings.Contains(volid, fmt.Sprintf("vm-%d-", l.node.VMID))}
		disk, _ := artefact.ReadDisk(media.Bytes()) // foreign content has no EPHEMERAL
		if slices.ContainsFunc(disk.Partitions, func(p artefact.Partition) bool { return p.Label == "EPHEMERAL" }) {
			d.Identity = talosapi.Lasting
		}
		l.World.Protect(d)
		l.persistent = append(l.persistent, content{d.Serial, media.SHA256()})
	}
}

func (l *layoutLab) vm() world.VM {
	l.t.Helper()
	return valueOf(l.World.LookupVM(l.node.Host, l.node.VMID))(l.t)
}

// shape is the VM's configuration without what a roll may change: names of volumes, the system disk, regenerated
// values, the mark of the run, and the boot ISO's CD drive, which stays empty if the VM had none.
func (l *layoutLab) shape() map[string]string {
	shape := map[string]string{}
	for key, value := range l.vm().Merged() {
		d, err := cluster.ParseDisk(key, value)
		switch {
		case key == "arch" && value == "x86_64": // the hosts' default
			continue
		case key == l.node.SystemDrive(), slices.Contains([]string{"meta", "vmgenid", "digest"}, key), err == nil && d.CDROM && !d.CloudInit():
			continue
		case err == nil && !d.CDROM:
			slices.Sort(d.Options)
			value = strings.Join(d.Options, ",")
		case key == "boot":
			value = regexp.MustCompile(`;ide\d`).ReplaceAllString(value, "")
		case key == "description":
			value = regexp.MustCompile(`\n?recast: run=.*`).ReplaceAllString(value, "")
		}
		if value != "" {
			shape[key] = value
		}
	}
	return shape
}

func (l *layoutLab) lift() {
	l.t.Helper()
	shell := l.Shell(l.node.Host)
	for _, command := range l.of.Lift.Commands {
		words := strings.Fields(command)
		var err error
		switch {
		case strings.HasPrefix(command, "qm reboot "):
			l.powerCycle(l.node)
		case strings.HasPrefix(command, "pvesh create /cluster/mapping/pci --id "):
			l.World.AddMapping("pci", words[4], l.node.Host)
		case strings.HasPrefix(command, "pvesh create /cluster/mapping/usb --id "):
			l.World.AddMapping("usb", words[4], l.node.Host)
		case words[0] == "kubectl":
			err = l.kubectl(words[1:])
		case words[0] == "pveum":
			_, err = l.Pveum(words[1:])
		case strings.HasPrefix(command, "pvesr delete "):
			l.World.RemoveReplication(words[2])
		case strings.HasPrefix(command, "qm delsnapshot "):
			err = l.World.DeleteSnapshot(l.node.VMID, words[3])
		default:
			_, err = shell.Run(words)
		}
		mustBe(l.t, err == nil, "%s: %v", command, err)
	}
	if key, value, images := strings.Cut(strings.TrimPrefix(l.of.Lift.Config, "images."), ": "); images {
		was := regexp.MustCompile("(?m)^  " + key + ": .*$").Find(l.Read("recast.yaml"))
		l.Replace("recast.yaml", string(was), "  "+key+": "+value)
		l.lock()
	}
	l.line(l.of.Lift.Recast)
}

// kubectl is kubectl -n NAMESPACE patch RESOURCE.GROUP NAME --type merge -p PATCH of a custom
// resource, and a wait of some minutes for controllers.
func (l *layoutLab) kubectl(words []string) error {
	l.t.Helper()
	if len(words) != 9 || words[0] != "-n" || words[2] != "patch" || words[5] != "--type" || words[6] != "merge" || words[7] != "-p" {
		return errors.New("only kubectl -n … patch … --type merge -p … is known")
	}
	config := valueOf(clientcmd.RESTConfigFromKubeConfig([]byte(l.Read("kubeconfig"))))(l.t)
	config.Dial = l.Lab.Lab.Client().DialContext
	transport := valueOf(rest.HTTPClientFor(config))(l.t)
	defer utilnet.CloseIdleConnectionsFor(transport.Transport)
	client := valueOf(dynamic.NewForConfigAndClient(config, transport))(l.t)
	resource, group, _ := strings.Cut(words[3], ".")
	kind := schema.GroupVersionResource{Group: group, Version: "v1beta2", Resource: resource}
	patch := []byte(strings.Trim(words[8], "'"))
	_, err := client.Resource(kind).Namespace(words[1]).Patch(l.t.Context(), words[4], types.MergePatchType, patch, metav1.PatchOptions{})
	time.Sleep(5 * time.Minute)
	return err
}

var (
	layoutsUpdate = flag.Bool("layouts.update", false, "write the page of layouts anew")
	layoutsDir    = flag.String("layouts.dir", ownLayouts, "where layouts are; those of another directory are compared with no page")
)

const (
	ownLayouts  = "../../../testdata/layouts"
	layoutsPage = ownLayouts + "/README.md"
)

// verdict is recast's result for a layout.
type verdict struct {
	layouts.Layout
	plan   planning.NodePlan
	lifted *planning.NodePlan // after the layout's remedy; nil: not needed, or there is none
}

// TestLayouts plans a roll of every layout, as it is and after its remedy, and compares the results with their page.
func TestLayouts(t *testing.T) {
	all := loadLayouts(t)
	verdicts := make([]verdict, len(all))
	t.Run("each", func(t *testing.T) {
		for i, layout := range all {
			t.Run(layout.Name, func(t *testing.T) {
				long(t)
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { verdicts[i] = judge(t, newLayoutLab(t, layout, nil)) })
			})
		}
	})
	if *layoutsDir != ownLayouts || slices.ContainsFunc(verdicts, func(v verdict) bool { return v.Name == "" }) {
		return // only some were requested
	}
	require(t, len(all) >= 25, "only %d layouts", len(all))
	page := layoutPage(verdicts)
	if *layoutsUpdate {
		must(t, os.WriteFile(layoutsPage, []byte(page), 0o644))
		return
	}
	requireSame(t, string(readFile(t, layoutsPage)), page, "what is done with a layout has changed; "+
		"go test ./internal/sim/simtest -run TestLayouts -layouts.update writes it afresh (-page +now)")
}

func loadLayouts(t *testing.T) []layouts.Layout {
	t.Helper()
	all := valueOf(layouts.Load(*layoutsDir))(t)
	slices.SortFunc(all, func(a, b layouts.Layout) int { return strings.Compare(a.Name, b.Name) }) // as on the page
	return all
}

// judge plans the node's roll, and if it is not recreated, again after the remedy.
func judge(t *testing.T, l *layoutLab) verdict {
	t.Helper()
	v := verdict{Layout: l.of, plan: planOf(t, l.Lab, l.of.Node)}
	if isRecreated(v.plan) || !l.of.Lift.Helps() {
		return v
	}
	if *layoutsDir == ownLayouts {
		l.requirePrinted(v.plan)
	}
	l.lift()
	v.lifted = new(planOf(t, l.Lab, l.of.Node))
	return v
}

// requirePrinted fails the test unless the plan contains all the manual steps, word for word.
func (l *layoutLab) requirePrinted(plan planning.NodePlan) {
	l.t.Helper()
	var commands, config []string
	for _, o := range plan.ToRecreate {
		if o.Command != "" && !slices.Contains(commands, o.Command) {
			commands = append(commands, o.Command)
		}
		config = append(config, o.Config)
	}
	requireSame(l.t, strings.Join(l.of.Lift.Commands, " && "), strings.Join(commands, " && "),
		"commands that lift it (-the layout's +the plan's)")
	want := l.of.Lift.Config
	require(l.t, want == "" || slices.Contains(config, want),
		"the plan does not say that recast.yaml needs %s: %v", want, config)
}

// TestLayoutsAreRolled rolls every layout as far as recast and the layout's remedy allow, kills another such roll once,
// right after the VM is deleted or half-way, resumes it, and compares.
func TestLayoutsAreRolled(t *testing.T) {
	long(t)
	t.Parallel()
	for _, layout := range loadLayouts(t) {
		t.Run(layout.Name, func(t *testing.T) {
			t.Parallel()
			var ref reference
			var strategy cluster.Strategy
			synctest.Test(t, func(t *testing.T) { ref, strategy = rollLayout(t, layout) })
			if strategy == "" || t.Failed() {
				return // refused, with a reason
			}
			synctest.Test(t, func(t *testing.T) { resumeLayout(t, layout, strategy, ref) })
		})
	}
}

// rollLayout rolls undisturbed; an empty strategy means that the plan refuses.
func rollLayout(t *testing.T, layout layouts.Layout) (ref reference, strategy cluster.Strategy) {
	l := newLayoutLab(t, layout, nil)
	n := readyLayout(t, l)
	if len(n.Refused) > 0 {
		return ref, ""
	}
	before := l.shape()
	points, _ := l.finish(t, rolls(l.policy()))
	l.requireRolled(before)
	return reference{points, l.settledDump(), l.Talos}, n.Strategy
}

func resumeLayout(t *testing.T, layout layouts.Layout, strategy cluster.Strategy, ref reference) {
	l := newLayoutLab(t, layout, ref.secrets)
	readyLayout(t, l)
	before := l.shape()
	at := ref.points[len(ref.points)/2]
	if strategy == cluster.Recreate {
		at = namedPoint(t, ref.points, fmt.Sprintf("DELETE /api2/json/nodes/%s/qemu/%d", l.node.Host, l.node.VMID))
	}
	l.diesAt(t, at, rolls(l.policy()))
	l.finish(t, rolls(l.policy()))
	l.requireRolled(before)
	requireSame(t, ref.dump, l.settledDump(),
		"killed at %s: the world differs from an undisturbed one (-undisturbed +resumed)", at)
}

// readyLayout plans, applies a remedy if it helps, and returns the final plan.
func readyLayout(t *testing.T, l *layoutLab) planning.NodePlan {
	t.Helper()
	v := judge(t, l)
	if v.lifted != nil {
		return *v.lifted
	}
	return v.plan
}

func (l *layoutLab) policy() planning.Policy { return policyFor(l.of.Node) }

// requireRolled fails the test unless the node runs the new build on the same VM, and no promise was broken.
func (l *layoutLab) requireRolled(before map[string]string) {
	l.t.Helper()
	l.RequireIntact()
	requireNone(l.t, l.plan(l.policy()).Work(), "after the roll there is still something to do")
	requireSame(l.t, before, l.shape(), "the VM is not what it was (-before +now)")
}

func layoutPage(all []verdict) string {
	var rows strings.Builder
	now, after := 0, 0
	for _, v := range all {
		switch {
		case isRecreated(v.plan):
			now++
		case v.liftedToRecreate():
			after++
		}
		rows.WriteString(v.row())
	}
	n := len(all)
	return fmt.Sprintf(`# Clusters as people have them

Each file here is a world of the lab, made from the public sources that it names. A test plans a roll of one node, does what the last column
says, plans again, rolls, kills the roll in its middle, resumes it and compares. This page is what it saw: %s writes it afresh.

**%d of %d are recreated as they are, %d after what the last column says: %d %%.** The plan itself prints these commands, word for word.

| layout | strategy | why | what lifts it to recreate |
|---|---|---|---|
%s`, "`go test ./internal/sim/simtest -run TestLayouts -layouts.update`", now, n, after, (now+after)*100/n, rows.String())
}

func isRecreated(n planning.NodePlan) bool {
	return n.Strategy == cluster.Recreate && len(n.Refused) == 0
}

func (v verdict) liftedToRecreate() bool { return v.lifted != nil && isRecreated(*v.lifted) }

func (v verdict) row() string {
	strategy, why := string(v.plan.Strategy), v.plan.Why
	if len(v.plan.Refused) > 0 {
		strategy, why = "refused", strings.Join(v.plan.Refused, "; ")
	}
	_, reason, _ := strings.Cut(why, ": ")
	command := "–"
	switch {
	case isRecreated(v.plan):
		command = ""
	case v.liftedToRecreate():
		command = "`" + strings.Join(v.Lift.Commands, "`, `") + "`"
		if v.Lift.Config != "" {
			command += ", `" + v.Lift.Config + "` in recast.yaml and `recast lock`"
		}
		if v.Lift.Recast != "" {
			command += ", `" + v.Lift.Recast + "` on its line in recast.yaml"
		}
		command = strings.TrimPrefix(command, "``, ")
	case v.lifted != nil:
		command = "– (not even with its remedy)"
	}
	return fmt.Sprintf("| [%s](%s.yaml) | %s | %s | %s |\n", v.Name, v.Name, strategy, cell(masked(reason)), cell(command))
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
