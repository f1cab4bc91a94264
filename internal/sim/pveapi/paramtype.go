package pveapi

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
)

// booleans are parameters that must be 1 or 0: on, yes and true are only valid in property
// strings (check_type in JSONSchema.pm).
var booleans = []string{
	"allow-move", "current", "destroy-unreferenced-disks", "dhcp", "download", "enabled", "errors", "failback", "force", "forceStop", "full", "ha-managed",
	"ipfilter", "keepActive", "live-restore", "macfilter", "ndp", "new-format", "nomatch", "online", "overrule-shutdown", "purge", "radv", "skiplock", "unique", "verify-certificates", "vmstate",
	"with-conntrack-state", "with-local-disks",
}

// bounds are the minimum and maximum of a number.
type bounds struct{ from, to int }

var (
	unbounded = bounds{math.MinInt, math.MaxInt}
	natural   = bounds{0, math.MaxInt}
	anyVMID   = bounds{100, 999999999}
)

// integers are the integer parameters.
var integers = map[string]bounds{
	"background_delay": {1, 30}, "bwlimit": natural, "delay": {1, 30}, "enable": natural, "guest": anyVMID, "limit": natural, "max_relocate": natural, "max_restart": natural,
	"newid": anyVMID, "pos": natural, "since": unbounded, "start": natural, "target-vmid": anyVMID, "timeout": natural, "until": unbounded, "vmid": anyVMID,
}

// isBoolean says whether a parameter of the route is a boolean. The type of some names
// depends on the route.
func (r route) isBoolean(name string) bool {
	switch r.method + " " + r.path + " " + name {
	case "POST /nodes/{node}/qemu start", "POST /nodes/{node}/qemu/{vmid}/move_disk delete", "PUT /pools delete", "GET /nodes/{node}/storage format",
		"PUT /nodes/{node}/qemu/{vmid}/firewall/options enable":
		return true
	}
	return slices.Contains(booleans, name)
}

// isInteger is isBoolean for integers.
func (r route) isInteger(name string) (bounds, bool) {
	within, is := integers[name]
	aList := r.path == "/nodes/{node}/vzdump" && name == "vmid"
	return within, is && !aList && !r.isBoolean(name)
}

var (
	wholeNumber = regexp.MustCompile(`^[+-]?\d+$`)
	vmidForm    = regexp.MustCompile(`^[1-9][0-9]{2,8}$`)
)

// wrongType says why a value has the wrong type; "" if it has not.
func (r route) wrongType(name, value string) string {
	if r.isBoolean(name) && value != "0" && value != "1" {
		return fmt.Sprintf("type check ('boolean') failed - got '%s'", value)
	}
	within, is := r.isInteger(name)
	if !is {
		return ""
	}
	if !wholeNumber.MatchString(value) {
		return fmt.Sprintf("type check ('integer') failed - got '%s'", value)
	}
	if within == anyVMID && !vmidForm.MatchString(value) {
		return "invalid format - value does not look like a valid VM ID\n"
	}
	switch n, err := strconv.Atoi(value); {
	case err != nil || n > within.to:
		return fmt.Sprintf("value must have a maximum value of %d", within.to)
	case n < within.from:
		return fmt.Sprintf("value must have a minimum value of %d", within.from)
	}
	return ""
}
