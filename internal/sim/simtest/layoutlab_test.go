package simtest

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/recast-sh/recast/cluster"
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

// newLayoutLab starts a layout's lab; secrets are those of another lab of it, nil: new
// ones.
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
	vm := valueOf(l.World.LookupVM(l.node.Host, l.node.VMID))(l.t)
	return vm
}

// shape is the VM's configuration without what a roll may change: names of volumes, the
// system disk, regenerated values, the mark of the run, and the boot ISO's CD drive, which
// stays empty if the VM had none.
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

// lift applies the layout's manual remedy.
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
	client, err := dynamic.NewForConfigAndClient(config, transport)
	must(l.t, err)
	resource, group, _ := strings.Cut(words[3], ".")
	kind := schema.GroupVersionResource{Group: group, Version: "v1beta2", Resource: resource}
	patch := []byte(strings.Trim(words[8], "'"))
	_, err = client.Resource(kind).Namespace(words[1]).Patch(l.t.Context(), words[4], types.MergePatchType, patch, metav1.PatchOptions{})
	time.Sleep(5 * time.Minute)
	return err
}
