package talos

import (
	"slices"
	"strconv"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// The documents of a machine configuration that name what to install where, and the machine.
const (
	installKind  = "UnattendedInstallConfig"
	hostnameKind = "HostnameConfig"
)

// PatchConfig edits the installer, install disk, hostname and Kubernetes versions
// where the configuration has them. A document that needs no edit keeps its bytes;
// an edited one keeps all of its other keys and values, which is checked.
//
// Talos' configpatcher applies the patches that users write (internal/machineconfig), but can't do this: it decodes all
// documents and encodes them again. Of "type: worker # a worker" it drops the comment; it adds version: "" and
// certSANs: [], which nobody has set; a document of a kind that came after recast's release, such as
// "kind: LaterConfig", it refuses, where the node's own Talos knows it; and it merges a diskSelector into the one that is
// there, so that {wwid: x} over {type: nvme} asks for both (TestConfigpatcher).
func (*Client) PatchConfig(config cluster.Secret, p cluster.ConfigPatch) (cluster.Secret, error) {
	if p == (cluster.ConfigPatch{Talos: p.Talos}) {
		return nil, fault.MachineConfig.Refusedf("neither installer nor disk nor hostname nor Kubernetes is given")
	}
	docs, err := parseDocuments(config)
	if err != nil {
		return nil, fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	if err := editDocuments(docs, p); err != nil {
		return nil, fault.MachineConfig.Refusedf("edit: %w", err)
	}
	var patched []byte
	for _, d := range docs {
		b, err := d.bytes()
		if err != nil {
			return nil, fault.MachineConfig.Refusedf("edit: %s", withoutValues(err.Error(), config))
		}
		patched = append(patched, b...)
	}
	if err := checkRest(config, patched, p); err != nil {
		return nil, err
	}
	if err := checkPatched(patched, p); err != nil {
		return nil, err
	}
	return patched, nil
}

func editDocuments(docs []*document, p cluster.ConfigPatch) error {
	main, install, hostname, err := findDocuments(docs)
	if err != nil {
		return err
	}
	switch {
	case p.Installer == "" && !installs(p):
	case install != nil:
		err = editUnattended(install.root, p)
	default:
		err = editInstall(main.root, p)
	}
	if err == nil {
		err = editKubernetes(docs, main, p.Kubernetes)
	}
	if err != nil || p.Hostname == "" {
		return err
	}
	if hostname != nil {
		if auto := hostname.root.text("auto"); auto != "off" {
			hostname.root.del("auto") // a generated name and a given one exclude each other
		}
		hostname.root.set("hostname", "!!str", p.Hostname)
		return nil
	}
	network, err := main.root.edit("machine", "network")
	if err != nil {
		return err
	}
	network.set("hostname", "!!str", p.Hostname)
	return nil
}

// findDocuments finds the main document, which must exist, and those that replace parts of it.
func findDocuments(docs []*document) (main, install, hostname *document, err error) {
	for _, d := range docs {
		if d.node == nil {
			continue
		}
		place := map[string]**document{"": &main, installKind: &install, hostnameKind: &hostname}[d.kind()]
		switch {
		case place == nil:
		case *place != nil:
			return nil, nil, nil, fault.MachineConfig.Refusedf("two documents of kind %q", d.kind())
		default:
			*place = d
		}
	}
	if main == nil {
		return nil, nil, nil, fault.MachineConfig.Refusedf("the main document, with machine and cluster, is missing")
	}
	return main, install, hostname, nil
}

// installs reports whether the patch names a disk to install on.
func installs(p cluster.ConfigPatch) bool { return p.Disk != (cluster.MachineDisk{}) }

// attribute returns the best identification of a disk: the name of the attribute in
// machine.install.diskSelector and in CEL, and its value.
func attribute(d cluster.MachineDisk) (legacy, cel, value string) {
	switch {
	case d.WWID != "":
		return "wwid", "wwid", d.WWID
	case d.Serial != "":
		return "serial", "serial", d.Serial
	}
	return "busPath", "bus_path", d.BusPath
}

// editInstall leaves only the disk's attribute in the selector. The disk has been
// proven blank: wiping would only take time.
func editInstall(root mapping, p cluster.ConfigPatch) error {
	install, err := root.edit("machine", "install")
	if err != nil {
		return err
	}
	if p.Installer != "" {
		install.set("image", "!!str", p.Installer)
	}
	if !installs(p) {
		return nil
	}
	install.del("disk")
	selector, err := install.edit("diskSelector")
	if err != nil {
		return err
	}
	key, _, value := attribute(p.Disk)
	setOnly(selector, key, value)
	install.set("wipe", "!!bool", "false")
	return nil
}

func editUnattended(root mapping, p cluster.ConfigPatch) error {
	if p.Installer != "" {
		installer, err := root.edit("installer")
		if err != nil {
			return err
		}
		installer.set("image", "!!str", p.Installer)
	}
	if !installs(p) {
		return nil
	}
	provisioning, err := root.edit("provisioning")
	if err != nil {
		return err
	}
	selector, err := provisioning.edit("diskSelector")
	if err != nil {
		return err
	}
	_, key, value := attribute(p.Disk)
	setOnly(selector, "match", "disk."+key+" == "+strconv.Quote(value))
	provisioning.set("wipe", "!!bool", "false")
	return nil
}

// setOnly makes key the single one of m.
func setOnly(m mapping, key, value string) {
	m.set(key, "!!str", value)
	i := m.index(key)
	m.node.Content = m.node.Content[i : i+2 : i+2]
}

// installImage is the installer that a configuration names; "" if it cannot be read.
func installImage(docs []*document) string {
	main, install, _, err := findDocuments(docs)
	if err != nil {
		return ""
	}
	if install != nil {
		installer, _ := install.root.in("installer")
		return textOf(installer, "image")
	}
	legacy, _ := main.root.in("machine", "install")
	return textOf(legacy, "image")
}

func textOf(m mapping, key string) string {
	if m.node == nil {
		return ""
	}
	return strings.TrimSpace(m.text(key))
}

// kubernetesPlaces are where a configuration names the images of Kubernetes: in
// separate documents since 1.14, otherwise in the main one. A configuration may mix
// both kinds (config/generate/stdpatches/guess.go).
var kubernetesPlaces = []struct {
	component cluster.Component
	kind      string
	legacy    []string
	image     func(config.Provider) string
}{
	{cluster.APIServer, "KubeAPIServerConfig", []string{"cluster", "apiServer"}, func(c config.Provider) string { return imageIn(c.K8sAPIServerConfig()) }},
	{cluster.ControllerManager, "KubeControllerManagerConfig", []string{"cluster", "controllerManager"}, func(c config.Provider) string { return imageIn(c.K8sControllerManagerConfig()) }},
	{cluster.Scheduler, "KubeSchedulerConfig", []string{"cluster", "scheduler"}, func(c config.Provider) string { return imageIn(c.K8sSchedulerConfig()) }},
	{cluster.KubeProxy, "KubeProxyConfig", []string{"cluster", "proxy"}, func(c config.Provider) string { return imageIn(c.K8sProxyConfig()) }},
	{cluster.Kubelet, "KubeletConfig", []string{"machine", "kubelet"}, func(c config.Provider) string { return imageIn(c.K8sKubeletConfig()) }},
}

func imageIn[T interface {
	comparable
	Image() string
}](c T) string {
	if c == *new(T) {
		return ""
	}
	return c.Image()
}

// editKubernetes sets the images named in the patch to its versions.
func editKubernetes(docs []*document, main *document, images cluster.KubernetesImages) error {
	for _, place := range kubernetesPlaces {
		like := images.Of(place.component)
		if like == "" {
			continue
		}
		of := func(d *document) bool { return d.node != nil && d.kind() == place.kind }
		var root mapping
		switch i := slices.IndexFunc(docs, of); {
		case i >= 0 && slices.ContainsFunc(docs[i+1:], of):
			return fault.MachineConfig.Refusedf("two documents of kind %q", place.kind)
		case i >= 0:
			root = docs[i].root
		default:
			var err error
			if root, err = main.root.edit(place.legacy...); err != nil {
				return err
			}
		}
		image, err := cluster.Retag(root.text("image"), like)
		if err != nil {
			return fault.As(fault.Refused, err)
		}
		root.set("image", "!!str", image)
	}
	return nil
}

// kubernetesPaths are the paths that editKubernetes sets in a document of that kind.
func kubernetesPaths(kind string, images cluster.KubernetesImages) (set [][]string) {
	for _, place := range kubernetesPlaces {
		switch {
		case images.Of(place.component) == "":
		case kind == "":
			set = append(set, append(slices.Clone(place.legacy), "image"))
		case kind == place.kind:
			set = append(set, []string{"image"})
		}
	}
	return set
}

// checkKubernetes checks that the configuration names the wanted versions.
func checkKubernetes(cfg config.Provider, images cluster.KubernetesImages) error {
	for _, place := range kubernetesPlaces {
		like := images.Of(place.component)
		if like != "" && !cluster.SameVersion(place.image(cfg), like) {
			return fault.MachineConfig.Refusedf("it would not run %s in the version of %s", place.component, like)
		}
	}
	return nil
}
