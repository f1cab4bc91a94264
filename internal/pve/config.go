package pve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/foreign"
)

// rawConfig is a VM's configuration as the API returns it. Values are strings,
// numbers or booleans, depending on the version.
type rawConfig map[string]json.RawMessage

// normalise turns every value into the string that Proxmox would accept back,
// and splits off the digest.
func (r rawConfig) normalise() (config map[string]string, digest string, err error) {
	config = make(map[string]string, len(r))
	for key, raw := range r {
		switch {
		case len(raw) == 0 || bytes.Equal(raw, []byte("null")):
		case raw[0] == '{' && (key == "cloudinit" || key == "special-sections"):
			// The section [special:cloudinit] holds what the cloud-init drive was
			// made from, fleecing the images of a backup. parse_vm_config of
			// QemuServer.pm keeps them beside the settings, and load_current_config
			// (pve-guest-common, AbstractConfig.pm) returns them.
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

// UnmarshalJSON reads either form.
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

// mergePending returns a VM's configuration with its pending changes applied, as
// load_current_config does (pve-guest-common, AbstractConfig.pm). As there, a key to
// be deleted stays if its value is "0". The digest is a row like any other
// (GuestHelpers.pm, config_with_pending_array).
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
