package pve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// rawConfig is a VM's configuration as the API returns it. Values are strings,
// numbers or booleans, depending on the version.
type rawConfig map[string]json.RawMessage

// normalise turns every value into the string that Proxmox would accept back, and splits off the digest.
func (r rawConfig) normalise() (config map[string]string, digest string, err error) {
	config = make(map[string]string, len(r))
	for key, raw := range r {
		switch {
		case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		case raw[0] == '{' && (key == "cloudinit" || key == "special-sections"):
			// The section [special:cloudinit] holds what the cloud-init drive was made from; the section fleecing
			// holds the images of a backup. parse_vm_config of QemuServer.pm keeps them beside the settings, and
			// load_current_config (pve-guest-common, AbstractConfig.pm) returns them.
		case raw[0] == '{' || raw[0] == '[':
			return nil, "", foreign.Error(fmt.Errorf("%s is neither a text nor a number: %s", key, raw))
		case key == "digest":
			digest = scalar(raw)
		default:
			config[key] = scalar(raw)
		}
	}
	return config, digest, nil
}

// scalar is a JSON string's content, 1 or 0 for a boolean, and a number's digits as written.
func scalar(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	switch text := strings.TrimSpace(string(raw)); text {
	case "true":
		return "1"
	case "false", "null":
		return "0"
	default:
		return text
	}
}

// toBool reads the API's booleans: 1, "1", true.
func toBool(raw json.RawMessage) bool {
	if len(raw) == 0 {
		return false
	}
	s := scalar(raw)
	return s != "" && s != "0"
}

// flexInt is an integer that Proxmox writes as a number or a string; null is 0.
type flexInt int64

// UnmarshalJSON reads a number, a string or null.
func (n *flexInt) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		*n = 0
		return nil
	}
	v, err := strconv.ParseInt(scalar(b), 10, 64)
	*n = flexInt(v)
	return err
}

// pendingRow is one key of a VM's pending list.
type pendingRow struct {
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
	Pending json.RawMessage `json:"pending"`
	Delete  json.RawMessage `json:"delete"`
}

// pendingKeys returns the keys whose change waits for the VM's next start, sorted.
func pendingKeys(rows []pendingRow) []string {
	var keys []string
	for _, r := range rows {
		if len(r.Pending) > 0 || toBool(r.Delete) {
			keys = append(keys, r.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// mergePending returns a VM's configuration with its pending changes applied, as load_current_config does
// (pve-guest-common, AbstractConfig.pm). As there, a key to be deleted stays if its value is "0". The digest is a row
// like any other (GuestHelpers.pm, config_with_pending_array).
func mergePending(rows []pendingRow) rawConfig {
	config := make(rawConfig, len(rows))
	for _, r := range rows {
		value := r.Value
		if len(r.Pending) > 0 {
			value = r.Pending
		}
		if len(value) > 0 && !(toBool(r.Delete) && toBool(value)) {
			config[r.Key] = value
		}
	}
	return config
}

var diskKey = regexp.MustCompile(`^(?:scsi|virtio|sata|ide|efidisk|tpmstate|unused)\d+$`)

// touchesDisk reports whether a change affects a drive. Allocating, detaching and
// freeing may exceed the 30 s timeout of a synchronous request.
func touchesDisk(set map[string]string, del []string) bool {
	for key := range set {
		if diskKey.MatchString(key) {
			return true
		}
	}
	return slices.ContainsFunc(del, diskKey.MatchString)
}

// allocation matches a drive's value that makes Proxmox allocate a volume: "fast:10", in GiB.
var allocation = regexp.MustCompile(`^[^:,=]+:\d+(?:\.\d+)?$`)

func volid(value string) string {
	first, _, _ := strings.Cut(value, ",")
	return strings.TrimPrefix(first, "file=")
}

func allocates(key, value string) bool {
	return cluster.IsDiskKey(key) && allocation.MatchString(volid(value))
}

// sameValue reports whether a key holds the requested value in Proxmox's spelling: it reorders the options of drives
// and network cards, adds sizes and MAC addresses, and sorts tags.
func sameValue(key, want, now string) bool {
	switch {
	case want == now:
		return true
	case now == "":
		return false
	case key == "cipassword": // shown as asterisks
		return true
	case key == "tags":
		return slices.Equal(sortedParts(want, isListMark), sortedParts(now, isListMark))
	case key == "description":
		return strings.TrimRight(want, " \t\r\n") == strings.TrimRight(now, " \t\r\n")
	case allocates(key, want):
		storage, _, _ := strings.Cut(volid(want), ":")
		return strings.HasPrefix(volid(now), storage+":") && hasDriveOptions(want, now)
	case cluster.IsDiskKey(key) && strings.HasSuffix(volid(want), ":cloudinit"):
		d, err := cluster.ParseDisk(key, now)
		return err == nil && d.CloudInit() && d.Storage()+":cloudinit" == volid(want) && hasDriveOptions(want, now)
	case cluster.IsDiskKey(key):
		return volid(want) == volid(now) && hasDriveOptions(want, now)
	case strings.HasPrefix(key, "net"):
		wantModel, nowModel := volid(want), volid(now)
		return (strings.EqualFold(wantModel, nowModel) || strings.HasPrefix(nowModel, wantModel+"=")) && hasOptions(want, now)
	}
	return slices.Equal(sortedParts(want, isComma), sortedParts(now, isComma))
}

// hasOptions reports whether all requested options are present.
func hasOptions(want, now string) bool { return containsAll(optionsOf(want), optionsOf(now)) }

// hasDriveOptions is hasOptions for drives. It ignores options that only control the allocation.
func hasDriveOptions(want, now string) bool {
	asked := slices.DeleteFunc(cluster.DriveOptions(optionsOf(want)), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return name == "format" || name == "import-from"
	})
	return containsAll(asked, cluster.DriveOptions(optionsOf(now)))
}

func optionsOf(value string) []string {
	_, rest, _ := strings.Cut(value, ",")
	return strings.FieldsFunc(rest, isComma)
}

func containsAll(want, have []string) bool {
	return !slices.ContainsFunc(want, func(o string) bool { return !slices.Contains(have, o) })
}

func isComma(r rune) bool    { return r == ',' }
func isListMark(r rune) bool { return strings.ContainsRune(",; ", r) }

func sortedParts(s string, mark func(rune) bool) []string {
	parts := strings.FieldsFunc(s, mark)
	slices.Sort(parts)
	return slices.Compact(parts)
}
