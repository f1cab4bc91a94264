//lint:file-ignore SA1019 nodes have these fields, whatever replaces them

package talos

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	talosx509 "github.com/siderolabs/crypto/x509"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	blockpb "github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/config"
	configs "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/recast-sh/recast/cluster"
	machineconfig "github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/fault"
)

// Documents of a machine configuration that name the machine, or what to install and where.
const (
	installKind  = "UnattendedInstallConfig"
	hostnameKind = "HostnameConfig"
)

// PatchConfig edits the installer, install disk, hostname and Kubernetes versions in the places where the
// configuration has them. A document that needs no edit keeps its bytes. An edited document keeps all of its other
// keys and values; PatchConfig checks that.
//
// PatchConfig does not use Talos' configpatcher, which applies the patches that users write (internal/machineconfig).
// The configpatcher decodes all documents and encodes them again. It drops the comment of "type: worker # a worker".
// It adds version: "" and certSANs: [], which nobody has set. It refuses a document of a kind that is newer than
// recast's release, such as "kind: LaterConfig", although the node's own Talos knows that kind. It merges a
// diskSelector into an existing diskSelector, so that {wwid: x} over {type: nvme} requires both (TestConfigpatcher).
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

// setting is a value that a patch sets in the main document, or in the document that replaces that part of the main
// document.
type setting struct {
	kind        string // of the other document
	legacy, own place  // in the main document, and in the other document
	tag         string // "": the key is removed
	alone       bool   // the key is the only one of its mapping
	retag       bool   // only the version is taken from the text
}

// place is where a setting is written, and with which text. Without a path, the setting is written nowhere.
type place struct {
	path []string
	text string
}

// settings returns the settings of a patch. Nothing is wiped: the disk has been proven blank, and wiping would only
// take time.
func settings(p cluster.ConfigPatch) (all []setting) {
	at := func(text string, path ...string) place { return place{path, text} }
	if p.Installer != "" {
		all = append(all, setting{
			kind: installKind, tag: "!!str",
			legacy: at(p.Installer, "machine", "install", "image"), own: at(p.Installer, "installer", "image"),
		})
	}
	if installs(p) {
		key, cel, value := attribute(p.Disk)
		all = append(all, setting{kind: installKind, legacy: at("", "machine", "install", "disk")}, setting{
			kind: installKind, tag: "!!str", alone: true,
			legacy: at(value, "machine", "install", "diskSelector", key),
			own:    at("disk."+cel+" == "+strconv.Quote(value), "provisioning", "diskSelector", "match"),
		}, setting{
			kind: installKind, tag: "!!bool",
			legacy: at("false", "machine", "install", "wipe"), own: at("false", "provisioning", "wipe"),
		})
	}
	for _, k := range kubernetesPlaces {
		if like := p.Kubernetes.Of(k.component); like != "" {
			all = append(all, setting{
				kind: k.kind, tag: "!!str", retag: true,
				legacy: at(like, append(slices.Clone(k.legacy), "image")...), own: at(like, "image"),
			})
		}
	}
	if p.Hostname != "" {
		all = append(all, setting{
			kind: hostnameKind, tag: "!!str",
			legacy: at(p.Hostname, "machine", "network", "hostname"), own: at(p.Hostname, "hostname"),
		})
	}
	return all
}

func editDocuments(docs []*document, p cluster.ConfigPatch) error {
	main, _, hostname, err := findDocuments(docs)
	if err != nil {
		return err
	}
	if p.Hostname != "" && hostname != nil && hostname.root.text("auto") != "off" {
		hostname.root.del("auto") // a generated name and a given one exclude each other
	}
	for _, s := range settings(p) {
		of := func(d *document) bool { return d.node != nil && d.kind() == s.kind }
		root, at := main.root, s.legacy
		switch i := slices.IndexFunc(docs, of); {
		case i >= 0 && slices.ContainsFunc(docs[i+1:], of):
			return fault.MachineConfig.Refusedf("two documents of kind %q", s.kind)
		case i >= 0:
			root, at = docs[i].root, s.own
		}
		if err := s.write(root, at); err != nil {
			return err
		}
	}
	return nil
}

func (s setting) write(root mapping, at place) error {
	if at.path == nil {
		return nil
	}
	in, err := root.edit(at.path[:len(at.path)-1]...)
	if err != nil {
		return err
	}
	key, text := at.path[len(at.path)-1], at.text
	if s.tag == "" {
		in.del(key)
		return nil
	}
	if s.retag {
		if text, err = cluster.Retag(in.text(key), text); err != nil {
			return fault.As(fault.Refused, err)
		}
	}
	in.set(key, s.tag, text)
	if i := in.index(key); s.alone {
		in.node.Content = in.node.Content[i : i+2 : i+2]
	}
	return nil
}

// findDocuments finds the main document, which must exist, and the documents that replace parts of it.
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

// installImage returns the installer that a configuration names; "" if the installer cannot be read.
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

// kubernetesPlaces are the places where a configuration names the images of Kubernetes: in separate documents since
// 1.14, otherwise in the main document. A configuration may mix both kinds (config/generate/stdpatches/guess.go).
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

// checkRest checks that the patch changed nothing else.
func checkRest(before, after []byte, p cluster.ConfigPatch) error {
	var rest [2][]any
	for i, config := range [][]byte{before, after} {
		docs, err := parseDocuments(config)
		if err != nil {
			return fault.MachineConfig.Refusedf("the patched configuration can't be read: %w", err)
		}
		for _, d := range docs {
			if d.node != nil {
				rest[i] = append(rest[i], without(d, p))
			}
		}
	}
	if !reflect.DeepEqual(rest[0], rest[1]) {
		return fault.WithHint(fault.MachineConfig.Refusedf("editing would change more than it is meant to set"),
			"YAML anchors and merge keys around machine.install or machine.network must be written out")
	}
	return nil
}

// without returns the document's content except the values that the patch sets.
func without(d *document, p cluster.ConfigPatch) any {
	tree := d.orig
	for _, s := range settings(p) {
		at := s.own
		switch d.kind() {
		case "":
			at = s.legacy
		case s.kind:
		default:
			continue
		}
		if s.alone {
			at.path = at.path[:len(at.path)-1]
		}
		if at.path != nil {
			tree = cut(tree, at.path...)
		}
	}
	if d.kind() == hostnameKind && p.Hostname != "" {
		tree = cut(tree, "auto")
	}
	return tree
}

// cut returns a copy of a tree without the value at path, and without mappings that become empty.
func cut(tree any, path ...string) any {
	m, ok := tree.(map[string]any)
	if !ok {
		return tree
	}
	m = maps.Clone(m)
	if len(path) == 1 {
		delete(m, path[0])
		return m
	}
	child := cut(m[path[0]], path[1:]...)
	if sub, isMap := child.(map[string]any); child == nil || isMap && len(sub) == 0 {
		delete(m, path[0])
	} else {
		m[path[0]] = child
	}
	return m
}

// machineMode is the mode in which configurations are validated: for a bare machine that will install itself on a
// disk, or is already installed.
type machineMode struct{ installs bool }

func (machineMode) String() string          { return "metal" }
func (m machineMode) RequiresInstall() bool { return m.installs }
func (machineMode) InContainer() bool       { return false }

// checkPatched reads the configuration as Talos will, and checks that the configuration means what the patch requested.
func checkPatched(patched []byte, p cluster.ConfigPatch) error {
	cfg, unknown, err := loadKnown(patched)
	if err != nil {
		return fault.WithHint(err, "recast knows the configuration of Talos up to 1.14; a newer Talos needs a newer recast")
	}
	if err := checkUnknown(unknown, p); err != nil {
		return err
	}
	if _, err := cfg.ValidateAsClient(machineMode{installs: installs(p)}); err != nil {
		return fault.MachineConfig.Refusedf("Talos would refuse it: %s", withoutValues(err.Error(), patched))
	}
	docs, err := parseDocuments(patched)
	if err != nil {
		return fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	if !p.Runs {
		err = checkIssue(docs, p)
	}
	if err := errors.Join(err, checkVersion(docs, p), checkKubernetes(cfg, p.Kubernetes)); err != nil {
		return err
	}
	image, selector, err := installTarget(cfg)
	if err != nil && installs(p) {
		return fault.MachineConfig.Refusedf("its install disk: %s", withoutValues(err.Error(), patched))
	}
	if u := cfg.UnattendedInstallConfig(); installs(p) && u != nil && u.RebootAfterInstall() != nil && !*u.RebootAfterInstall() {
		return fault.WithHint(fault.MachineConfig.Refusedf("its %s says reboot: false: Talos would install itself and never boot what it has installed", installKind),
			"remove the line from the configuration, so that Talos reboots after an installation")
	}
	var name string
	if h := cfg.NetworkHostnameConfig(); h != nil {
		name = h.Hostname()
	}
	switch {
	case p.Installer != "" && image != p.Installer:
		return fault.MachineConfig.Refusedf("it would install another image than %s", p.Installer)
	case installs(p) && !selectsOnly(selector, p.Disk):
		_, what, value := attribute(p.Disk)
		return fault.MachineConfig.Refusedf("its disk selector would not match the disk with %s %q alone", what, value)
	case p.Hostname != "" && name != p.Hostname:
		return fault.MachineConfig.Refusedf("it would not name the machine %s", p.Hostname)
	}
	return nil
}

// installTarget returns the image that Talos will install, and the selector with which Talos will choose the disk.
func installTarget(cfg config.Provider) (image string, selector *cel.Expression, err error) {
	if u := cfg.UnattendedInstallConfig(); u != nil {
		match := u.VolumeSelector()
		return u.InstallerImage(), &match, nil
	}
	in := cfg.Machine().Install()
	selector, err = in.DiskMatchExpression()
	if err == nil && selector == nil {
		err = errors.New("no disk selector")
	}
	return in.Image(), selector, err
}

// selectsOnly tries the selector on the disk as Talos would show it, and on disks of
// the same model with names similar to its own.
func selectsOnly(selector *cel.Expression, disk cluster.MachineDisk) bool {
	_, what, name := attribute(disk)
	matches := func(name string) bool {
		spec := &blockpb.DiskSpec{
			DevPath: "/dev/sda", Size: 10 << 30, Model: "QEMU HARDDISK", Transport: "virtio", SubSystem: "/sys/class/block",
		}
		*map[string]*string{"wwid": &spec.Wwid, "serial": &spec.Serial, "bus_path": &spec.BusPath}[what] = name
		ok, err := selector.EvalBool(celenv.DiskLocator(), map[string]any{"disk": spec, "system_disk": false})
		return ok && err == nil
	}
	if name == "" || !matches(name) || matches("") || strings.ContainsAny(name, "*?[]\\\"") {
		return false
	}
	for _, other := range []string{name + "x", "x" + name, name[1:], name[:len(name)-1], strings.Repeat("x", len(name))} {
		if other != name && matches(other) {
			return false
		}
	}
	return true
}

// ReplaceConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) ReplaceConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	// Talos up to 1.13 may reboot for AUTO (v1alpha1_server.go, ApplyConfiguration).
	return c.configure(ctx, addr, uuid, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
}

// TryConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) TryConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret, limit time.Duration) error {
	return c.configure(ctx, addr, uuid, &machineapi.ApplyConfigurationRequest{
		Data: config, Mode: machineapi.ApplyConfigurationRequest_TRY, TryModeTimeout: durationpb.New(limit),
	})
}

// StageConfig implements cluster.Configurer. Errors are those of ApplyConfig.
func (c *Client) StageConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) error {
	return c.configure(ctx, addr, uuid, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_STAGED})
}

// CheckConfig implements cluster.Configurer. Errors are those of ApplyConfig. A dry run has the mode of a trial: with any other mode, Talos before
// 1.14 ends a trial that runs, and keeps the configuration that was on trial (v1alpha1_server.go; talos#14343). In that mode it refuses what
// needs a reboot.
func (c *Client) CheckConfig(ctx context.Context, addr netip.Addr, uuid string, config cluster.Secret) (reboots bool, err error) {
	err = c.call(ctx, addr.String(), func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was asked"); err != nil {
			return err
		}
		_, err := apply(ctx, s, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_TRY, DryRun: true})
		if _, reboots = errors.AsType[rebootError](err); reboots {
			return nil
		}
		return err
	})
	return reboots, err
}

func (c *Client) configure(ctx context.Context, addr netip.Addr, uuid string, req *machineapi.ApplyConfigurationRequest) error {
	return c.call(ctx, addr.String(), applying(uuid, req))
}

func applying(uuid string, req *machineapi.ApplyConfigurationRequest) func(context.Context, session) error {
	return func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was applied"); err != nil {
			return err
		}
		_, err := apply(ctx, s, req)
		return err
	}
}

// apply sends a configuration. It retries while another configuration is being applied, within the call's time: Talos
// accepts one at a time and queues none (v1alpha1_server.go, ApplyConfiguration).
func apply(ctx context.Context, s session, req *machineapi.ApplyConfigurationRequest) (*machineapi.ApplyConfigurationResponse, error) {
	const pause = time.Second
	for {
		res, err := s.ApplyConfiguration(ctx, req)
		busy := client.StatusCode(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "already in progress")
		if end, _ := ctx.Deadline(); !busy || time.Until(end) <= pause {
			return res, applied(err, req.GetData())
		}
		select {
		case <-ctx.Done():
			return res, applied(err, req.GetData())
		case <-time.After(pause):
		}
	}
}

// checkUUID refuses a connection to another machine than the intended one; untouched says what was not done.
func checkUUID(ctx context.Context, s session, uuid, untouched string) error {
	found, _, err := readSMBIOS(ctx, s)
	switch {
	case err != nil:
		return err
	case uuid == "" || found != strings.ToLower(uuid):
		return fault.UUIDMismatch.Refusedf("the machine has UUID %q, not %q: %s", found, uuid, untouched)
	}
	return nil
}

// change makes one call that changes the machine, if the machine has that UUID.
func (c *Client) change(
	ctx context.Context, addr netip.Addr, uuid string, limit time.Duration, do func(context.Context, session) error,
) error {
	return c.with(ctx, addr.String(), limit, func(ctx context.Context, s session) error {
		if err := checkUUID(ctx, s, uuid, "nothing was done"); err != nil {
			return err
		}
		return changed(do(ctx, s))
	}, c.as)
}

// changed distinguishes the answer to a change from a lost answer.
func changed(err error) error {
	err = answer(err)
	if e, ok := errors.AsType[*answerError](err); ok && e.lost() {
		return fmt.Errorf("%w: %w", cluster.ErrLostAnswer, err)
	}
	return err
}

// applied redacts the answer to a configuration: Talos quotes what it refuses.
func applied(err error, config cluster.Secret) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	switch {
	case !ok:
		return err
	case e.lost():
		return fmt.Errorf("apply: %w: %s", cluster.ErrLostAnswer, withoutValues(e.text, config))
	}
	err = fault.MachineConfig.Refusedf("the machine rejects the configuration: %s", withoutValues(e.text, config))
	if strings.Contains(e.text, "can't be applied in immediate mode") { // v1alpha1_runtime.go, CanApplyImmediate, before 1.14
		return rebootError{err}
	}
	return err
}

// rebootError is that of a configuration that needs a reboot.
type rebootError struct{ error }

func (e rebootError) Unwrap() error { return e.error }

// MaintenanceMachine reads a machine in maintenance mode. It is not ready before every disk has been probed.
func (c *Client) MaintenanceMachine(ctx context.Context, addr netip.Addr) (m cluster.BlankMachine, err error) {
	err = c.callBlank(ctx, addr, func(ctx context.Context, s session) error {
		if m.Machine, err = readParts(ctx, s, cluster.WholeMachine&^cluster.AddressesPart); err == nil {
			m.Fingerprint = *s.fingerprint.Load()
		}
		return err
	})
	return m, err
}

// ApplyConfig hands the machine its first configuration, over the same connection on which it proved who it is. The
// error wraps cluster.ErrLostAnswer if the configuration was sent and no answer came.
func (c *Client) ApplyConfig(ctx context.Context, addr netip.Addr, who cluster.Proof, config cluster.Secret) error {
	return c.callBlank(ctx, addr, func(ctx context.Context, s session) error {
		uuid, sku, err := readSMBIOS(ctx, s)
		if err == nil {
			err = who.Check(uuid, sku, *s.fingerprint.Load())
		}
		if err != nil {
			return err
		}
		// Not every Talos accepts REBOOT, the zero value; all accept AUTO in maintenance mode.
		_, err = apply(ctx, s, &machineapi.ApplyConfigurationRequest{Data: config, Mode: machineapi.ApplyConfigurationRequest_AUTO})
		return err
	})
}

// TrustedCA implements cluster.Maintenance. The configuration of a worker also has the certificate of the CA, without
// its key.
func (c *Client) TrustedCA(config cluster.Secret) (trusted, known bool, err error) {
	own := c.config.Contexts[c.config.Context].CA
	if own == "" {
		return false, false, nil
	}
	text, err := base64.StdEncoding.DecodeString(own)
	if err != nil {
		return false, false, fault.Credentials.Configf("the CA of the talosconfig can't be read")
	}
	cfg, _, err := loadKnown(config)
	if err != nil {
		return false, false, err
	}
	if cfg.Machine() == nil || cfg.Machine().Security().IssuingCA() == nil {
		return false, true, nil
	}
	has := certificates(cfg.Machine().Security().IssuingCA().Crt)
	trusts := func(ca *x509.Certificate) bool { return slices.ContainsFunc(has, ca.Equal) }
	return slices.ContainsFunc(certificates(text), trusts), true, nil
}

// certificates returns the readable certificates in a PEM text.
func certificates(text []byte) (out []*x509.Certificate) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if crt, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, crt)
		}
	}
	return out
}

func (*Client) ConfigEffect(runs, wanted cluster.Secret) (cluster.ConfigEffect, error) {
	was, _, err := loadKnown(runs)
	if err != nil {
		return cluster.ConfigEffect{}, fault.MachineConfig.Refusedf("what the node runs can't be read: %w", err)
	}
	is, unknown, err := loadKnown(wanted)
	if err != nil {
		return cluster.ConfigEffect{}, err
	}
	if was.RawV1Alpha1() == nil || is.RawV1Alpha1() == nil {
		return cluster.ConfigEffect{}, fault.MachineConfig.Refusedf("the main document, with machine and cluster, is missing")
	}
	effect := cluster.ConfigEffect{Identity: differ(was, is), Unknown: unknown}
	if effect.Reboot, err = needReboot(was, is); err != nil {
		return effect, err
	}
	docs, err := parseDocuments(wanted)
	if err != nil {
		return effect, fault.MachineConfig.Refusedf("not a machine configuration: %w", err)
	}
	effect.Encryption, err = encryption(docs)
	return effect, err
}

// identities are the parts of a configuration that make a machine this node of this cluster. Each part has the value
// that takes effect, in whatever document it is written.
var identities = []struct {
	name string
	of   func(config.Config) any
}{
	{cluster.NodeRole, func(c config.Config) any { return c.Machine().Type() }},
	{"the machine's token", func(c config.Config) any { return c.Machine().Security().Token() }},
	{cluster.TalosCA, func(c config.Config) any { return c.Machine().Security().IssuingCA() }},
	{"the cluster's endpoint", part("", config.Config.K8sClusterConfig, func(k configs.K8sClusterConfig) any {
		return fmt.Sprint(k.ClusterEndpoint())
	})},
	{"the cluster's name", part("", config.Config.K8sClusterConfig, func(k configs.K8sClusterConfig) any {
		return k.ClusterName()
	})},
	{"the cluster's ID", part("", config.Config.DiscoveryIdentityConfig, func(d configs.DiscoveryIdentityConfig) any {
		return d.ClusterID()
	})},
	{"the cluster's secret", part("", config.Config.DiscoveryIdentityConfig, func(d configs.DiscoveryIdentityConfig) any {
		return d.ClusterSecret()
	})},
	{"the bootstrap token of Kubernetes", func(c config.Config) any {
		if t := c.Cluster().Token(); t != nil {
			return t.ID() + "." + t.Secret()
		}
		return ""
	}},
	{kubernetesCA, part(nil, config.Config.K8sAPIServerCAConfig, func(k configs.K8sAPIServerCAConfig) any {
		return k.IssuingCA()
	})},
	{"the aggregator CA of Kubernetes", part(nil, config.Config.K8sAggregatorCAConfig, func(k configs.K8sAggregatorCAConfig) any {
		return k.IssuingCA()
	})},
	{"the service account key of Kubernetes", part(nil, config.Config.K8sServiceAccountConfig, func(k configs.K8sServiceAccountConfig) any {
		return k.IssuingKey()
	})},
	{"the keys that encrypt Kubernetes' secrets", func(c config.Config) any {
		if e := c.K8sEtcdEncryptionConfig(); e != nil {
			return keysIn(e.EtcdEncryptionConfig())
		}
		return slices.DeleteFunc([]string{c.Cluster().AESCBCEncryptionSecret(), c.Cluster().SecretboxEncryptionSecret()}, func(key string) bool { return key == "" })
	}},
	{"the CA of etcd", func(c config.Config) any {
		if e := c.Cluster().Etcd(); e != nil {
			return e.CA()
		}
		return nil
	}},
}

// part returns a function that reads a value from a part of the configuration; the function returns none if there is
// no such part.
func part[T comparable](none any, of func(config.Config) T, value func(T) any) func(config.Config) any {
	return func(c config.Config) any {
		if p := of(c); p != *new(T) {
			return value(p)
		}
		return none
	}
}

// kubernetesCA is the CA of Kubernetes as part of a node's identity. Control planes issue certificates with the CA,
// and workers accept it (config.K8sAPIServerCAConfig).
const kubernetesCA = "the CA of Kubernetes"

// wholeOnControlPlanes are the parts of the identity that a worker has only in part, or not at all.
var wholeOnControlPlanes = []string{
	cluster.TalosCA, "the aggregator CA of Kubernetes", "the service account key of Kubernetes", "the keys that encrypt Kubernetes' secrets", "the CA of etcd",
}

// differ returns the names of the parts of the identity that differ. Of a control plane and a worker it compares only
// what both roles have.
func differ(was, is config.Config) []string {
	var out []string
	before, after := was.Machine().Type(), is.Machine().Type()
	for _, i := range identities {
		differs := false
		switch {
		case i.name == cluster.NodeRole && before == machine.TypeInit && after == machine.TypeControlPlane:
			// The node is still a control plane, and no longer begins its own etcd.
		case i.name == kubernetesCA && !(before.IsControlPlane() && after.IsControlPlane()):
			differs = apart(acceptedCAs(was), acceptedCAs(is))
		case before.IsControlPlane() != after.IsControlPlane() && slices.Contains(wholeOnControlPlanes, i.name):
			differs = !sameCertificate(i.of(was), i.of(is))
		default:
			differs = !reflect.DeepEqual(i.of(was), i.of(is))
		}
		if differs {
			out = append(out, i.name)
		}
	}
	return out
}

// sameCertificate reports whether the certificate of a CA, which nodes of both roles have, is the same. A certificate
// that one of the nodes lacks counts as the same.
func sameCertificate(a, b any) bool {
	x, isCA := a.(*talosx509.PEMEncodedCertificateAndKey)
	y, also := b.(*talosx509.PEMEncodedCertificateAndKey)
	return !isCA || !also || x == nil || y == nil || len(x.Crt) == 0 || len(y.Crt) == 0 || bytes.Equal(x.Crt, y.Crt)
}

// acceptedCAs returns the CAs of Kubernetes that a node accepts, including the issuing CA.
func acceptedCAs(c config.Config) (out []*x509.Certificate) {
	if ca := c.K8sAPIServerCAConfig(); ca != nil {
		for _, accepted := range ca.AcceptedCAs() {
			out = append(out, certificates(accepted.Crt)...)
		}
	}
	return out
}

// apart reports whether a and b both have CAs, but none in common: while a CA is rotated, both nodes accept two.
func apart(a, b []*x509.Certificate) bool {
	return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(ca *x509.Certificate) bool { return slices.ContainsFunc(b, ca.Equal) })
}

// keysIn returns the secrets in a configuration of encryption, sorted.
func keysIn(v any) (keys []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, child := range v {
			if text, ok := child.(string); ok && name == "secret" {
				keys = append(keys, text)
			}
			keys = append(keys, keysIn(child)...)
		}
	case []any:
		for _, child := range v {
			keys = append(keys, keysIn(child)...)
		}
	}
	slices.Sort(keys)
	return keys
}

// needReboot lists the fields that take effect only at the next boot. They are the fields of the main document that
// Talos 1.12 and 1.13 refuse to change without a reboot (CanApplyImmediate in v1alpha1_runtime.go; Talos 1.14 no
// longer checks, and changes none of these fields either); the fields of etcd, which Talos reads when it starts that
// service, and never starts again (PreFunc in services/etcd.go); the variables of the environment, which running
// services keep (SetUserEnvVars); and the like.
func needReboot(was, is config.Provider) ([]string, error) {
	now, then := was.RawV1Alpha1(), is.RawV1Alpha1().DeepCopy()
	then.ConfigDebug = now.ConfigDebug
	if a, b := now.ClusterConfig, then.ClusterConfig; a != nil && b != nil && was.Machine().Type().IsControlPlane() {
		etcd := b.EtcdConfig
		then.ClusterConfig = a.DeepCopy()
		then.ClusterConfig.EtcdConfig = etcd
	} else {
		then.ClusterConfig = a
	}
	if a, b := now.MachineConfig, then.MachineConfig; a != nil && b != nil {
		b.MachineCA, b.MachineAcceptedCAs, b.MachineCertSANs = a.MachineCA, a.MachineAcceptedCAs, a.MachineCertSANs
		b.MachineTime, b.MachineNetwork, b.MachineRegistries = a.MachineTime, a.MachineNetwork, a.MachineRegistries
		b.MachineInstall, b.MachineSysfs, b.MachineSysctls = a.MachineInstall, a.MachineSysfs, a.MachineSysctls
		b.MachineLogging, b.MachineControlPlane, b.MachineKubelet = a.MachineLogging, a.MachineControlPlane, a.MachineKubelet
		b.MachineKernel, b.MachinePods, b.MachineSeccompProfiles = a.MachineKernel, a.MachinePods, a.MachineSeccompProfiles
		b.MachineNodeAnnotations, b.MachineNodeLabels, b.MachineNodeTaints = a.MachineNodeAnnotations, a.MachineNodeLabels, a.MachineNodeTaints
		if f, g := a.MachineFeatures, b.MachineFeatures; f != nil && g != nil {
			g.KubernetesTalosAPIAccessConfig, g.KubePrismSupport, g.HostDNSSupport = f.KubernetesTalosAPIAccessConfig, f.KubePrismSupport, f.HostDNSSupport
			g.ImageCacheSupport, g.FeatureNodeAddressSortAlgorithm = f.ImageCacheSupport, f.FeatureNodeAddressSortAlgorithm
		}
	}
	changes, err := changesOf(now, then)
	if err != nil {
		return nil, err
	}
	out := cluster.Each(changes, func(c machineconfig.Change) string { return c.Path })
	for _, d := range readAtStart {
		if !reflect.DeepEqual(d.of(was), d.of(is)) && (d.document != "EnvironmentConfig" || len(out) == 0) {
			out = append(out, d.document)
		}
	}
	wanted := moduleParameters(is)
	for name, now := range moduleParameters(was) {
		if parameters, stays := wanted[name]; stays && !slices.Equal(now, parameters) {
			out = append(out, "parameters of kernel module "+name) // a loaded module keeps its parameters (controllers/runtime/kernel_module_spec.go)
		}
	}
	slices.Sort(out)
	return out, nil
}

// readAtStart are documents, or sections of the main document, whose old values running services keep until the next
// boot.
var readAtStart = []struct {
	document string
	of       func(config.Config) any
}{
	{"EnvironmentConfig", func(c config.Config) any { return c.Environment() }},
	{"RegistryAuthConfig", func(c config.Config) any { // CRI reads the credentials when it starts (RegistryAuth's comment in v1alpha1_types.go)
		all := map[string][4]string{}
		for registry, auth := range c.RegistryAuthConfigs() {
			all[registry] = [4]string{auth.Username(), auth.Password(), auth.Auth(), auth.IdentityToken()}
		}
		return all
	}},
	{"SecurityProfileConfig", func(c config.Config) any { // since 1.14: read by the boot sequence
		profile := c.SecurityProfileConfig()
		return profile != nil && profile.WorkloadIsolation()
	}},
}

func moduleParameters(c config.Config) map[string][]string {
	all := map[string][]string{}
	for _, m := range c.KernelModuleConfigs() {
		all[m.Name()] = m.Parameters()
	}
	return all
}

// changesOf compares two main documents.
func changesOf(a, b *v1alpha1.Config) ([]machineconfig.Change, error) {
	var docs [2]machineconfig.Documents
	for i, c := range []*v1alpha1.Config{a, b} {
		text, err := container.NewV1Alpha1(c).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
		if err == nil {
			docs[i], err = machineconfig.Parse(text)
		}
		if err != nil {
			return nil, fault.MachineConfig.Refusedf("whether it needs a reboot can't be determined")
		}
	}
	return machineconfig.Compare(docs[0], docs[1]), nil
}

// loadKnown reads a configuration without the documents of kinds that recast does not know. unknown names those
// kinds: a newer Talos may know them.
func loadKnown(text cluster.Secret) (cfg config.Provider, unknown []string, err error) {
	cfg, err = configloader.NewFromBytes(text)
	if err == nil {
		return cfg, nil, nil
	}
	docs, errDocs := parseDocuments(text)
	if errDocs != nil {
		return nil, nil, fault.MachineConfig.Refusedf("not a machine configuration: %w", errDocs)
	}
	var known []byte
	for _, d := range docs {
		if _, errOne := configloader.NewFromBytes(d.raw); errOne != nil && strings.Contains(errOne.Error(), notRegistered) {
			unknown = append(unknown, withoutValues(cmp.Or(d.kind(), "a document")+" of "+d.root.text("apiVersion"), text))
			continue
		}
		known = append(known, d.raw...)
	}
	if len(unknown) > 0 {
		cfg, err = configloader.NewFromBytes(known)
	}
	if err != nil {
		return nil, nil, fault.MachineConfig.Refusedf("Talos would refuse it: %s", withoutValues(err.Error(), text))
	}
	return cfg, unknown, nil
}

// notRegistered is part of the loader's error for a document of an unknown kind; the error itself is internal
// (config/internal/registry).
const notRegistered = "not registered"
