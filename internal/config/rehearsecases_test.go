package config_test

import "strings"

func rehearseCases() map[string]problemCase {
	rehearse := func(s string) string { return withRoll("rehearse: {" + s + "}") }
	at := func(endpoint string) string {
		return strings.Replace(rehearse("addresses: [192.0.2.250/24]"), "https://pve1:8006", endpoint, 1)
	}
	return map[string]problemCase{
		"scratch address, bare":      {rehearse("addresses: [192.0.2.250]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.250" is not an IPv4 address with the length of its network's prefix: write it like 192.0.2.250/24`},
		"scratch address, network":   {rehearse("addresses: [192.0.2.0/24]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.0/24" is not the address of one machine in a network of several`},
		"scratch address, broadcast": {rehearse("addresses: [192.0.2.255/24]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.255/24" is not the address of one machine in a network of several`},
		"scratch address, twice":     {rehearse("addresses: [192.0.2.250/24, 192.0.2.250/24]"), `17:42: roll.rehearse.addresses[1]: "192.0.2.250/24" is listed already`},
		"scratch address, gateway":   {rehearse("addresses: [192.0.2.1/24], gateway: 192.0.2.1"), `17:41: roll.rehearse.gateway: "192.0.2.1" is one of the addresses: scratch VMs would take it from the gateway`},
		"scratch address, Proxmox":   {at("https://192.0.2.250:8006"), `17:26: roll.rehearse.addresses[0]: "192.0.2.250/24" is the address of proxmox.endpoints[0] (line 11): choose an unused one`},
		"gateway, elsewhere":         {rehearse("addresses: [192.0.2.250/24], gateway: 198.51.100.1"), `17:43: roll.rehearse.gateway: "198.51.100.1" is in no network of the addresses`},
	}
}
