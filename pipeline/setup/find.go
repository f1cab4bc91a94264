package setup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// images finds the kind of image that the nodes run, and its source.
func (in *initial) images(ctx context.Context) (err error) {
	d := &in.draft
	versions, err := in.found.Versions()
	if err != nil {
		return err
	}
	if d.Talos = in.Talos; d.Talos == "" {
		if d.Talos, err = in.choose(ctx, "Versions of Talos that run here", "Which one should every node run?", "--talos-version", versions, versions[0]); err != nil {
			return err
		}
	}
	others := slices.DeleteFunc(slices.Clone(versions), func(v string) bool { return v == d.Talos })
	d.Others = strings.Join(others, ", ")
	for _, v := range others {
		on := in.names(func(n survey.Discovered) bool { return n.Machine.TalosVersion == v })
		in.warn("%s: Talos %s, not %s: drift reports that as stale, and a roll changes it", strings.Join(on, ", "), v, d.Talos)
	}
	if d.Platform, err = in.one("platform", func(m cluster.Machine) string { return m.Platform }); err != nil {
		return err
	}
	if d.Arch, err = in.one("architecture", func(m cluster.Machine) string { return m.Arch }); err != nil {
		return err
	}
	secure, err := in.one("Secure Boot", func(m cluster.Machine) string {
		return cluster.OnOff(m.SecureBoot != nil && *m.SecureBoot)
	})
	if err != nil {
		return err
	}
	if d.Platform != "nocloud" && d.Platform != "metal" {
		return fault.WithHint(fault.Refusedf("the nodes run images for the platform %q; recast builds only images for nocloud and metal", d.Platform),
			"a node changes its platform when it is recreated from another image: write recast.yaml by hand from examples/recast.yaml, and set images.platform")
	}
	d.SecureBoot = secure == "on"
	d.Kubernetes = in.kubernetes()
	in.cameFrom()
	in.res.Talos, in.res.Kubernetes, in.res.Platform, in.res.Arch = d.Talos, d.Kubernetes, d.Platform, d.Arch
	return nil
}

// kubernetes is the version that all nodes run; "" if they differ or it could not be read.
func (in *initial) kubernetes() string {
	read := cluster.Where(in.found.Nodes, func(n survey.Discovered) bool { return n.Node != nil })
	versions := cluster.Each(read, func(n survey.Discovered) string { return n.Node.KubeletVersion })
	slices.Sort(versions)
	versions = slices.Compact(versions)
	if len(versions) != 1 || cluster.CheckKubernetesVersion(versions[0]) != nil {
		return ""
	}
	return versions[0]
}

// factoryInstaller is an installer of an Image Factory: host, [platform-]installer[-secureboot], schematic.
var factoryInstaller = regexp.MustCompile(`^([^/]+)/(?:[a-z0-9]+-)?installer(?:-secureboot)?/[0-9a-f]{64}[:@]`)

// officialInstaller matches the installers that Sidero Labs publishes.
var officialInstaller = regexp.MustCompile(`^ghcr\.io/(siderolabs|talos-systems)/installer(-base)?[:@]`)

// Default sources of images and extensions.
const publicFactory, publicExtensions = "https://factory.talos.dev", "ghcr.io/siderolabs"

// cameFrom finds the factory of the nodes' images from their installers.
func (in *initial) cameFrom() {
	d := &in.draft
	var hosts, mirrors []string
	for _, n := range in.found.Nodes {
		image := n.Machine.InstallImage
		if m := factoryInstaller.FindStringSubmatch(image); m != nil {
			hosts = append(hosts, m[1])
		} else if image != "" && !officialInstaller.MatchString(image) {
			mirrors = append(mirrors, repository(image))
		}
	}
	d.Factory, d.Extensions = publicFactory, cmp.Or(in.Extensions, publicExtensions)
	if most := mostCommon(hosts); most != "" {
		d.Factory = "https://" + most
		if loopback(most) { // as container tools do, see go-containerregistry's name.Registry
			d.Factory = "http://" + most
		}
	}
	if in.Factory != "" {
		d.Factory = in.Factory
	}
	d.Mirror = mostCommon(mirrors)
}

// repository is an image reference without tag and digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndex(ref, ":"); i > strings.LastIndex(ref, "/") {
		ref = ref[:i]
	}
	return ref
}

func loopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// mostCommon is the most frequent value, the first of several; "" for none.
func mostCommon(list []string) string {
	best, most := "", 0
	for _, s := range list {
		n := 0
		for _, o := range list {
			if o == s {
				n++
			}
		}
		if n > most {
			best, most = s, n
		}
	}
	return best
}

// proxmox finds the Proxmox settings of the configuration.
func (in *initial) proxmox(ctx context.Context) (err error) {
	d := &in.draft
	d.Endpoints, d.Fingerprint, d.CAFile = in.Endpoints, in.Fingerprint, in.CAFile
	d.TalosConfig = in.TalosConfig
	d.Cluster = in.clusterName()
	in.res.Cluster = d.Cluster
	if len(d.Endpoints) == 1 {
		hosts, err := in.src.Proxmox.Hosts(ctx)
		if err != nil {
			return fmt.Errorf("list the Proxmox nodes: %w", err)
		}
		for _, h := range hosts {
			if !h.Entry {
				d.Hosts = append(d.Hosts, h.Name)
			}
		}
	}
	if d.ISOStorage, err = in.isoStorage(ctx); err != nil {
		return err
	}
	return in.vmids(ctx)
}

// clusterName returns the name for the cluster.
func (in *initial) clusterName() string {
	return cmp.Or(in.Cluster, in.found.Cluster, clusterName(in.Context))
}

// clusterName derives the name of a cluster from a talosconfig's context, which talosctl
// gen config names after the cluster, and other tools after the user too.
func clusterName(context string) string {
	name := context[strings.LastIndex(context, "@")+1:]
	name = strings.Trim(regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(name, "-"), "-._")
	return cmp.Or(name[:min(len(name), 63)], "talos")
}

// isoStorage finds a storage that accepts ISOs on every host with nodes.
func (in *initial) isoStorage(ctx context.Context) ([]string, error) {
	for _, storage := range in.ISOStorage {
		takes, err := in.takes(ctx, storage, "iso")
		switch {
		case err != nil:
			return nil, err
		case !takes:
			return nil, fault.WithHint(fault.Refusedf("storage %s does not take ISOs on every Proxmox node with nodes of the cluster (%s)", storage, strings.Join(in.hosts(), ", ")),
				"see pvesm status there: it must be active and have the content type iso; the token needs Datastore.Audit on /storage/%s to see it", storage)
		}
	}
	if len(in.ISOStorage) > 0 {
		return in.ISOStorage, nil
	}
	names, shared, err := in.taking(ctx, "iso")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fault.WithHint(fault.Refusedf("no storage takes ISOs on every Proxmox node with nodes of the cluster (%s)", strings.Join(in.hosts(), ", ")),
			"add the content type iso to one: pvesm set STORAGE --content iso,…; the token needs Datastore.Audit on /storage to see it")
	}
	fallback := "" // a shared storage needs each ISO only once
	if len(shared) == 1 {
		fallback = shared[0]
	}
	name, err := in.choose(ctx, "Storages that accept ISOs", "Where should recast store the boot ISOs?", "--iso-storage", names, fallback)
	return []string{name}, err
}

// taking lists the storages that accept a type of content on every host with nodes, and those of them that are shared.
func (in *initial) taking(ctx context.Context, content string) (names, shared []string, err error) {
	storages, err := in.src.Proxmox.Storages(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("list the storages: %w", err)
	}
	for _, s := range storages {
		takes, err := in.takes(ctx, s.Name, content)
		if err != nil {
			return nil, nil, err
		}
		if takes && s.Shared {
			shared = append(shared, s.Name)
		}
		if takes {
			names = append(names, s.Name)
		}
	}
	return names, shared, nil
}

func (in *initial) takes(ctx context.Context, storage, content string) (bool, error) {
	for _, host := range in.hosts() {
		info, err := in.src.Proxmox.Storage(ctx, host, storage)
		switch {
		case errors.Is(err, images.ErrNoStorage):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read storage %s on %s: %w", storage, host, err)
		case !info.Active || !slices.Contains(info.Content, content):
			return false, nil
		}
	}
	return true, nil
}

func (in *initial) hosts() []string {
	out := cluster.Each(in.found.Nodes, func(n survey.Discovered) string { return n.VM.Host })
	slices.Sort(out)
	return slices.Compact(out)
}

// choose asks the user to choose one of several values.
func (in *initial) choose(ctx context.Context, what, text, flag string, choices []string, fallback string) (string, error) {
	if len(choices) == 1 {
		return choices[0], nil
	}
	return in.src.Ask(ctx, Question{Text: what + ": " + strings.Join(choices, ", ") + ". " + text, Choices: choices, Default: fallback, Flag: flag})
}

// plannedSchematic is a schematic file to write.
type plannedSchematic struct {
	schematics.Schematic
	name    string
	nodes   []survey.Discovered
	guessed bool // from the extensions, since no node shows it
	fresh   bool // of nodes that are not there yet
}

// schematics finds the schematics that the nodes run, and names them.
func (in *initial) schematics(ctx context.Context) error {
	for _, n := range in.found.Nodes {
		s, guessed, err := in.schematicRun(ctx, n)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(in.plans, func(p plannedSchematic) bool { return p.Canonical() == s.Canonical() })
		if i < 0 {
			in.plans, i = append(in.plans, plannedSchematic{Schematic: s}), len(in.plans)
		}
		p := &in.plans[i]
		p.nodes, p.guessed = append(p.nodes, n), p.guessed || guessed
	}
	nameSchematics(in.plans)
	for _, p := range in.plans {
		res := InitSchematic{Name: p.name, File: p.file(), Extensions: shortNames(p.Extensions()), Nodes: p.nodeNames()}
		in.res.Schematics = append(in.res.Schematics, res)
		in.draft.Schematics = append(in.draft.Schematics, config.DraftSchematic{Name: p.name, File: p.file(), Nodes: res.Nodes})
		if p.guessed {
			in.warn("%s: the image of %s contains no schematic, so the file was written from the listed extensions: add the kernel arguments that it was built with, if any",
				p.file(), strings.Join(res.Nodes, ", "))
		}
		if secrets := p.Secrets(); len(secrets) > 0 {
			in.warn("%s and recast.lock hold secrets, as the image of %s does (%s): commit neither; first remove the secrets from the schematic, then run recast lock",
				p.file(), strings.Join(res.Nodes, ", "), strings.Join(secrets, ", "))
			in.res.Secret = append(in.res.Secret, p.file())
		}
	}
	if len(in.res.Secret) > 0 {
		in.res.Secret = append([]string{"recast.lock"}, in.res.Secret...)
	}
	return nil
}

// schematicRun is the schematic that a node runs, without recast's own kernel argument.
func (in *initial) schematicRun(ctx context.Context, n survey.Discovered) (s schematics.Schematic, guessed bool, err error) {
	if text := n.Machine.Schematic.YAML; text != "" {
		s, err = schematics.Unlocked("the schematic of "+n.Name, []byte(text))
		return s, false, fault.WithHint(err, "it may come from an Image Factory that is too new for this recast: check for a newer recast, or leave the node out: --exclude %s", n.Name)
	}
	im, err := in.src.Images(pipeline.Project{Config: &config.Config{Cluster: in.draft.Cluster, Images: config.Images{Factory: in.draft.Factory, Extensions: in.draft.Extensions}}})
	if err != nil {
		return s, false, err
	}
	official, err := im.Catalog.Official(ctx, in.draft.Talos)
	if err != nil {
		return s, false, fmt.Errorf("list the official extensions for Talos %s: %w", in.draft.Talos, err)
	}
	listed := cluster.Each(n.Machine.Extensions, func(x cluster.ExtensionEntry) string { return x.Name })
	s, _, err = schematics.Guess("the schematic of "+n.Name, listed, official)
	return s, true, err
}

func (in *initial) schematicOf(node string) string {
	for _, p := range in.plans {
		if slices.Contains(p.nodeNames(), node) {
			return p.name
		}
	}
	return ""
}

func (p plannedSchematic) file() string { return "schematics/" + p.name + ".yaml" }

func (p plannedSchematic) nodeNames() []string {
	return cluster.Each(p.nodes, func(n survey.Discovered) string { return n.Name })
}

// content is the file: what a factory would store, with a comment about its origin.
func (p plannedSchematic) content() string {
	if p.fresh {
		return "# Image Factory format: anyone can post it to a factory. After a change: recast lock.\n" + p.Canonical()
	}
	return "# Image Factory format: anyone can post it to a factory. recast init wrote it from what\n# these nodes run: " +
		strings.Join(p.nodeNames(), ", ") + "\n" + p.Canonical()
}

// nameSchematics names each schematic after the nodes that run it, or, if that name is not unique, after an extension
// that only this schematic has.
func nameSchematics(plans []plannedSchematic) {
	if len(plans) == 1 {
		plans[0].name = "default"
		return
	}
	taken := map[string]int{}
	for i := range plans {
		plans[i].name = plans[i].kind()
		taken[plans[i].name]++
	}
	used := map[string]bool{}
	for i := range plans {
		p := &plans[i]
		if taken[p.name] > 1 {
			if own := p.ownExtension(plans); own != "" {
				p.name += "-" + own
			}
		}
		base := p.name
		for n := 2; used[p.name]; n++ {
			p.name = fmt.Sprintf("%s-%d", base, n)
		}
		used[p.name] = true
	}
}

// kind is the role of its nodes: "control-plane", "worker", or "default" for both.
func (p plannedSchematic) kind() string {
	workers := 0
	for _, n := range p.nodes {
		if !n.Machine.ControlPlane {
			workers++
		}
	}
	switch workers {
	case 0:
		return "control-plane"
	case len(p.nodes):
		return "worker"
	}
	return "default"
}

// ownExtension is the first extension that no other schematic has; "" if there is none.
func (p plannedSchematic) ownExtension(all []plannedSchematic) string {
	for _, x := range p.Extensions() {
		if !slices.ContainsFunc(all, func(o plannedSchematic) bool {
			return o.Canonical() != p.Canonical() && slices.Contains(o.Extensions(), x)
		}) {
			return path.Base(x)
		}
	}
	return ""
}

func shortNames(extensions []string) []string {
	out := []string{}
	out = append(out, cluster.Each(extensions, func(x string) string { return path.Base(x) })...)
	return out
}
