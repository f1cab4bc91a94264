package talos

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"go.yaml.in/yaml/v4"
	"golang.org/x/mod/semver"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/knownissue"
	"github.com/recast-sh/recast/internal/redact"
)

type document struct {
	raw  []byte     // including the line "---" that begins it
	node *yaml.Node // nil if the document is empty or only comments
	root mapping
	orig any // the content as decoded before any edit
}

// kind returns the document's kind; "" for the document that holds machine and cluster.
func (d *document) kind() string { return d.root.text("kind") }

// parseDocuments splits a configuration into its documents. Its errors do not quote the configuration. Joining
// unedited documents gives the same bytes.
func parseDocuments(config []byte) ([]*document, error) {
	var docs []*document
	before := 0
	for _, raw := range splitDocuments(config) {
		d := &document{raw: raw}
		// Blank lines in place of the preceding documents keep line numbers right.
		dec := yaml.NewDecoder(io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("\n"), before)), bytes.NewReader(raw)))
		before += bytes.Count(raw, []byte("\n"))
		var node, more yaml.Node
		switch err := dec.Decode(&node); {
		case errors.Is(err, io.EOF):
		case err != nil:
			// The parser's error may quote the configuration.
			return nil, errors.New("not valid YAML" + linesOf(err.Error()))
		case len(node.Content) == 1 && node.Content[0].Kind == yaml.MappingNode:
			d.node, d.root = &node, mapping{node.Content[0]}
			if err := node.Decode(&d.orig); err != nil {
				return nil, errors.New("not valid YAML" + linesOf(err.Error()))
			}
		case len(node.Content) != 1 || node.Content[0].ShortTag() != "!!null":
			return nil, errors.New("a document is not a mapping")
		}
		if d.node != nil && !errors.Is(dec.Decode(&more), io.EOF) {
			return nil, errors.New("documents must be separated by lines of ---")
		}
		docs = append(docs, d)
	}
	return docs, nil
}

// splitDocuments cuts before every line that begins a document. YAML treats such a
// line as a marker anywhere, even in a block of text.
func splitDocuments(config []byte) [][]byte {
	var parts [][]byte
	start := 0
	for at := 0; at < len(config); {
		end := len(config)
		if i := bytes.IndexByte(config[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		if line := config[at:end]; at > start && isMarker(line) {
			parts = append(parts, config[start:at])
			start = at
		}
		at = end
	}
	return append(parts, config[start:])
}

func isMarker(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}

// bytes returns the document's current text; the original bytes if nothing was changed.
func (d *document) bytes() ([]byte, error) {
	var now any
	if d.node == nil {
		return d.raw, nil
	}
	if err := d.node.Decode(&now); err != nil {
		return nil, err
	}
	if reflect.DeepEqual(now, d.orig) {
		return d.raw, nil
	}
	var b bytes.Buffer
	if isMarker(d.raw) {
		b.WriteString("---\n")
	}
	indent, compact := layout(d.root.node)
	dumper, err := yaml.NewDumper(&b, yaml.WithV3Defaults(), yaml.WithIndent(indent), yaml.WithCompactSeqIndent(compact), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	if err := errors.Join(dumper.Dump(d.node), dumper.Close()); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return b.Bytes(), nil
}

// layout returns the document's indentation in columns, and whether the dash of a
// list stands below the first letter of its key.
func layout(root *yaml.Node) (indent int, compact bool) {
	indent, compact = 4, false
	for i := len(root.Content) - 2; i >= 0; i -= 2 {
		key, value := root.Content[i], root.Content[i+1]
		if value.Style&yaml.FlowStyle != 0 || len(value.Content) == 0 {
			continue
		}
		child := value.Content[0]
		switch value.Kind {
		case yaml.MappingNode:
			_, inner := layout(value)
			compact = compact || inner
			if n := child.Column - key.Column; n >= 2 && n <= 9 {
				indent = n
			}
		case yaml.SequenceNode:
			compact = compact || value.Column == key.Column
		}
	}
	return indent, compact
}

// mapping edits a YAML mapping in place. Keys that are not named keep their order, style and comments.
type mapping struct{ node *yaml.Node }

func (m mapping) index(key string) int {
	for i := 0; i+1 < len(m.node.Content); i += 2 {
		if m.node.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// get returns the value at key, nil if there is none.
func (m mapping) get(key string) *yaml.Node {
	if i := m.index(key); i >= 0 {
		return m.node.Content[i+1]
	}
	return nil
}

// text returns the scalar at key; "" if there is none or the value is something else.
func (m mapping) text(key string) string {
	if v := m.get(key); v != nil && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
		return v.Value
	}
	return ""
}

// in follows keys to a mapping; ok is false if a key is missing or is not a mapping.
func (m mapping) in(keys ...string) (_ mapping, ok bool) {
	for _, key := range keys {
		v := m.get(key)
		if v == nil || v.Kind != yaml.MappingNode {
			return mapping{}, false
		}
		m = mapping{v}
	}
	return m, true
}

// edit follows keys to a mapping and creates the missing mappings on the way.
func (m mapping) edit(keys ...string) (mapping, error) {
	for _, key := range keys {
		v := m.get(key)
		if v == nil || v.Kind == yaml.ScalarNode && v.Tag == "!!null" {
			v = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			m.put(key, v)
		}
		if v.Kind != yaml.MappingNode {
			return mapping{}, fmt.Errorf("line %d: %s is not a plain mapping", v.Line, key)
		}
		m = mapping{v}
	}
	return m, nil
}

func (m mapping) put(key string, value *yaml.Node) {
	if i := m.index(key); i >= 0 {
		m.node.Content[i+1] = value
		return
	}
	if len(m.node.Content) == 0 {
		m.node.Style &^= yaml.FlowStyle // the mapping was written {}
	}
	m.node.Content = append(m.node.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
}

// set gives key a scalar of that tag; an equal scalar stays untouched.
func (m mapping) set(key, tag, value string) {
	fresh := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if old := m.get(key); old != nil && old.Kind == yaml.ScalarNode {
		if old.Value == value && old.ShortTag() == tag {
			return
		}
		fresh.HeadComment, fresh.LineComment, fresh.FootComment = old.HeadComment, old.LineComment, old.FootComment
	}
	m.put(key, fresh)
}

func (m mapping) del(key string) {
	if i := m.index(key); i >= 0 {
		m.node.Content = slices.Delete(m.node.Content, i, i+2)
	}
}

// documentsSince lists the kinds of configuration documents, and the names of VolumeConfig documents, that Talos
// releases after 1.12 added. The kinds are those that the machinery of the release registers (registry.Register in
// config/types) and that of the previous release, v1.12.0 or v1.13.9, does not. The names are those that
// config/types/block/volume_config.go allows since.
var documentsSince = []struct {
	release   *config.VersionContract
	documents []string
}{
	{config.TalosVersion1_13, []string{
		"BlackholeRouteConfig", "EnvironmentConfig", "ExternalVolumeConfig", "ImageVerificationConfig", "KubeSpanConfig",
		"RoutingRuleConfig", "TCPProbeConfig", "VRFConfig",
	}},
	{config.TalosVersion1_14, []string{
		"BGPInstanceConfig", "CRIBaseRuntimeSpecConfig", "CRICustomizationConfig", "ContainerConfig", "DiscoveryIdentityConfig",
		"DiscoveryServiceConfig", "EtcFileConfig", "FilesystemScrubConfig", "FilesystemTrimConfig", "HTTPProbeConfig", "ImageCacheConfig",
		"KernelModuleConfig", "KubeAPIServerCAConfig", "KubeAPIServerConfig", "KubeAdmissionControlConfig", "KubeAggregatorCAConfig",
		"KubeAuditPolicyConfig", "KubeAuthenticationConfig", "KubeAuthorizerConfig", "KubeClusterConfig", "KubeControllerManagerConfig",
		"KubeCoreDNSConfig", "KubeCredentialProviderConfig", "KubeEtcdEncryptionConfig", "KubeExternalManifestConfig",
		"KubeFlannelCNIConfig", "KubeInlineManifestConfig", "KubeNetworkConfig", "KubeNodeConfig", "KubePrismConfig", "KubeProxyConfig",
		"KubeSchedulerConfig", "KubeServiceAccountConfig", "KubeStaticPodConfig", "KubeTalosAPIAccessConfig", "KubeletConfig",
		"LVMLogicalVolumeConfig", "LVMVolumeGroupConfig", "RAIDArrayConfig", "SecurityProfileConfig", "SysctlConfig", "SysfsConfig",
		"UdevRulesConfig", "UnattendedInstallConfig", "VethConfig", "VolumeConfig CRI", "VolumeConfig ETCD", "VolumeConfig KUBELET",
		"VolumeConfig LOG",
	}},
}

// fieldsSince lists the fields that releases after 1.12.0 added to kinds of documents that earlier releases have: the
// difference of what their machinery decodes (config/types, config/schemas/config.schema.json). A path leads through
// every entry of a list. A release without a patch level is the first of its minor version.
var fieldsSince = []struct{ release, kind, paths string }{
	{"v1.12.4", "", "machine.network.kubespan.filters.excludeAdvertisedNetworks"}, // neither in v1.12.1
	{"v1.13", "", "cluster.network.cni.flannel.kubeNetworkPoliciesEnabled"},
	{"v1.13", "ExistingVolumeConfig", "mount.disableAccessTime mount.secure"},
	{"v1.13", "UserVolumeConfig", "mount"},
	{"v1.13", "VolumeConfig", "mount"},
	{"v1.13.4", "OOMConfig", "strictCgroupClassOrdering"}, // not in v1.13.3
	{"v1.14", "DHCPv4Config", "ignoreRoutes"},
	{"v1.14", "ExistingVolumeConfig", "scrub trim"},
	{"v1.14", "RawVolumeConfig", "encryption.allowDiscards"},
	{"v1.14", "ResolverConfig", "hostDNS nameservers.protocol nameservers.tlsServerName"},
	{"v1.14", "SwapVolumeConfig", "encryption.allowDiscards"},
	{"v1.14", "TimeSyncConfig", "ntp.useNTS"},
	{"v1.14", "UserVolumeConfig", "encryption.allowDiscards filesystem.xfs scrub trim"},
	{"v1.14", "VolumeConfig", "encryption.allowDiscards filesystem mount.disableAccessTime scrub trim"},
}

// checkVersion refuses documents and fields that are unknown to the Talos that will read them. Talos reads strictly:
// because of one unknown document or field, Talos rejects the whole configuration.
func checkVersion(docs []*document, p cluster.ConfigPatch) error {
	if _, err := config.ParseContractFromVersion(p.Talos); err != nil {
		return nil //nolint:nilerr // the version that reads it is unknown
	}
	names := map[string][]string{}
	add := func(release, name string) {
		if older(p.Talos, release) && !slices.Contains(names[release], name) {
			names[release] = append(names[release], name)
		}
	}
	for _, doc := range docs {
		for _, since := range documentsSince {
			name := doc.kind()
			if name == "VolumeConfig" {
				name = doc.title()
			}
			if slices.Contains(since.documents, name) {
				add(since.release.String(), name)
			}
		}
		for _, f := range fieldsSince {
			for path := range strings.FieldsSeq(f.paths) {
				if doc.node != nil && doc.kind() == f.kind && has(doc.orig, strings.Split(path, ".")) {
					add(f.release, strings.TrimSpace(doc.title()+" "+path))
				}
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	releases := slices.SortedFunc(maps.Keys(names), semver.Compare)
	newer := cluster.Each(releases, func(release string) string {
		return strings.Join(names[release], ", ") + " came with " + release
	})
	needs := releases[len(releases)-1]
	return fault.WithHint(fault.MachineConfig.Refusedf("Talos %s would refuse it: %s", p.Talos, strings.Join(newer, "; ")),
		"a configuration for Talos %s does not work on an older one: set talos.version to %s or later, or give the node its own configuration (talos.machineConfigs)", needs, needs)
}

// checkIssue refuses a configuration that the Talos that will read it accepts, and then fails with.
func checkIssue(docs []*document, p cluster.ConfigPatch) error {
	issue, known := knownissue.Of(p.Talos)
	if !known || !issue.Scheduler {
		return nil
	}
	for _, doc := range docs {
		if doc.node != nil && (doc.kind() == "" && hasInteger(doc.orig, "cluster", "scheduler", "config") || doc.kind() == "KubeSchedulerConfig" && hasInteger(doc.orig, "config")) {
			return fault.WithHint(fault.MachineConfig.Refusedf("%s, and this one has", issue), "%s, or write no integers there", issue.Hint())
		}
	}
	return nil
}

// hasInteger reports whether an integer is anywhere below a field.
func hasInteger(value any, path ...string) bool {
	switch v := value.(type) {
	case map[string]any:
		if len(path) > 0 {
			return hasInteger(v[path[0]], path[1:]...)
		}
		for _, entry := range v {
			if hasInteger(entry) {
				return true
			}
		}
	case []any:
		return len(path) == 0 && slices.ContainsFunc(v, func(entry any) bool { return hasInteger(entry) })
	case int, int64, uint64:
		return len(path) == 0
	}
	return false
}

// title returns the name of a document for an error: its kind and its name; "" for the main document.
func (d *document) title() string { return strings.TrimSpace(d.kind() + " " + d.root.text("name")) }

// has reports whether a value has a field, in any entry of a list on the way. An empty field counts as well: Talos
// refuses to read its name.
func has(value any, path []string) bool {
	switch v := value.(type) {
	case []any:
		return slices.ContainsFunc(v, func(entry any) bool { return has(entry, path) })
	case map[string]any:
		next, there := v[path[0]]
		return there && (len(path) == 1 || has(next, path[1:]))
	}
	return false
}

// older reports whether a version is before a release: "v1.13.3" is before "v1.13.4" and "v1.14", "v1.14.0-rc.1" is
// not before "v1.14".
func older(version, release string) bool {
	version, _, _ = strings.Cut(strings.TrimPrefix(version, "v"), "-")
	return semver.Compare("v"+version, release) < 0
}

// checkUnknown refuses documents of kinds that recast does not know, unless the Talos that will read them is newer
// than all releases that recast knows: the newer Talos has to judge them.
func checkUnknown(unknown []string, p cluster.ConfigPatch) error {
	reader, err := config.ParseContractFromVersion(p.Talos)
	newest := documentsSince[len(documentsSince)-1].release
	if len(unknown) == 0 || err == nil && reader.Greater(newest) {
		return nil
	}
	return fault.WithHint(fault.MachineConfig.Refusedf("Talos %s would refuse it: it does not know %s", cmp.Or(p.Talos, newest.String()), strings.Join(unknown, ", ")),
		"is it spelled as Talos' documentation has it? recast knows all kinds up to Talos %s", newest)
}

const (
	redacted = "[redacted]"
	// minRedacted is the length below which a value reveals nothing and would match everywhere.
	minRedacted = 4
	unknownKeys = "unknown keys found during decoding:\n"
)

var (
	// documentID matches what identifies a document's kind, which is not secret.
	documentID = map[string]*regexp.Regexp{
		"apiVersion": regexp.MustCompile(`^v\d+([a-z]+\d+)?$`), "version": regexp.MustCompile(`^v\d+([a-z]+\d+)?$`),
		"kind": regexp.MustCompile(`^[A-Z][A-Za-z]+Config$`),
	}
	errorCount = regexp.MustCompile(`\d+ errors? occurred:`)
	quoted     = regexp.MustCompile("`[^`]*`|\"[^\"]*\"|'[^']*'")
	lineNo     = regexp.MustCompile(`line \d+`)
)

// withoutValues removes from a message about a configuration every text that may be one of the configuration's
// values: parsers and validators quote what they reject.
func withoutValues(text string, config []byte) string {
	values, ok := scalars(config)
	if !ok {
		return "not valid YAML" + linesOf(text)
	}
	if head, listing, found := strings.Cut(text, unknownKeys); found {
		text = head + "unknown keys: " + keyPaths(listing)
	}
	text = quoted.ReplaceAllStringFunc(text, func(q string) string {
		inner := strings.TrimSuffix(strings.TrimSpace(q[1:len(q)-1]), "...")
		if len(inner) >= minRedacted && slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, inner) }) {
			return redacted
		}
		return q
	})
	for _, v := range values {
		text = replaceWord(text, v, redacted)
	}
	return foreign.Line(oneLine(text))
}

// oneLine joins a list of errors, as Talos' validators format it, into one line.
func oneLine(text string) string {
	var parts []string
	for line := range strings.Lines(errorCount.ReplaceAllString(text, "")) {
		if line = strings.TrimSpace(strings.TrimLeft(line, "\t* ")); line != "" {
			parts = append(parts, line)
		}
	}
	return strings.NewReplacer(":; ", ": ", "&&; ", "&& ").Replace(strings.Join(parts, "; ")) // also in a long CEL expression
}

// linesOf keeps only the position from a parser's message: ", line 3".
func linesOf(text string) string {
	if l := lineNo.FindString(text); l != "" {
		return ", " + l
	}
	return ""
}

// scalars returns a configuration's values, multi-line ones line by line, longest first.
func scalars(config []byte) (values []string, ok bool) {
	docs, err := parseDocuments(config)
	if err != nil {
		return nil, false
	}
	var walk func(n *yaml.Node, path []string)
	walk = func(n *yaml.Node, path []string) {
		switch n.Kind {
		case yaml.ScalarNode:
			secret := redact.Named(path, n.Value) || redact.Foreign(path)
			if tag := n.ShortTag(); tag == "!!bool" || tag == "!!null" || tag == "!!int" && !secret {
				return
			}
			for line := range strings.Lines(n.Value) {
				// A plain word may belong to the message: "disk", "worker".
				if line = strings.TrimSpace(line); len(line) >= minRedacted && (secret || !redact.Word(line)) {
					values = append(values, line)
				}
			}
		case yaml.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				key, value := n.Content[i], n.Content[i+1]
				if id := documentID[key.Value]; id == nil || !id.MatchString(value.Value) {
					walk(value, append(slices.Clip(path), key.Value))
				}
			}
		case yaml.SequenceNode:
			for _, c := range n.Content {
				walk(c, path)
			}
		}
	}
	for _, d := range docs {
		if d.node != nil {
			walk(d.root.node, nil)
		}
	}
	slices.SortFunc(values, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return slices.Compact(values), true
}

// keyPaths names the keys of a YAML text without their values.
func keyPaths(text string) string {
	var node yaml.Node
	if yaml.Unmarshal([]byte(text), &node) != nil || len(node.Content) == 0 {
		return redacted
	}
	var paths []string
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		switch {
		case n.Kind == yaml.MappingNode && len(n.Content) > 0:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i+1], strings.TrimPrefix(path+"."+n.Content[i].Value, "."))
			}
		case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
			for _, c := range n.Content {
				walk(c, path)
			}
		case !slices.Contains(paths, path):
			paths = append(paths, path)
		}
	}
	walk(node.Content[0], "")
	return strings.Join(paths, ", ")
}

// replaceWord replaces old wherever no letter or digit adjoins it.
func replaceWord(text, old, with string) string {
	var b strings.Builder
	for rest := text; ; {
		i := strings.Index(rest, old)
		if i < 0 {
			b.WriteString(rest)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(rest[:i])
		if i == 0 {
			before, _ = utf8.DecodeLastRuneInString(b.String())
		}
		after, _ := utf8.DecodeRuneInString(rest[i+len(old):])
		b.WriteString(rest[:i])
		if partOfWord(before, old) || partOfWord(after, old) {
			b.WriteString(old)
		} else {
			b.WriteString(with)
		}
		rest = rest[i+len(old):]
	}
}

// partOfWord reports whether r next to old makes old a part of a longer word. Only
// short values can be part of an ordinary word.
func partOfWord(r rune, old string) bool {
	return len(old) < 12 && r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}
