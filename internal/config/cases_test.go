package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/sim/must"
)

func wholeFileCases() map[string]problemCase {
	return map[string]problemCase{
		"empty":             {"", "1:1: the file is empty"},
		"only comments":     {"# nothing\n", "1:1: the file is empty"},
		"empty document":    {"---\n...\n", `1:1: must be a mapping that starts with "version: 1"`},
		"a list":            {"- version: 1\n", `1:1: must be a mapping that starts with "version: 1"`},
		"text":              {"hello\n", `1:1: must be a mapping that starts with "version: 1"`},
		"two documents":     {small + "---\nversion: 1\n", "16:1: a second document starts here: recast.yaml is one document"},
		"broken second":     {small + "---\n[", "18:1: not valid YAML: while parsing a flow node: did not find expected node content"},
		"tab":               {change("  version: v1", "\tversion: v1"), "4:1: not valid YAML: the line is indented with a tab: use spaces"},
		"open bracket":      {change("[isos]", "[isos"), "8:11: not valid YAML: while parsing a flow sequence: did not find expected ',' or ']'"},
		"two colons":        {change("cluster: home", "cluster: a: b"), "2:11: not valid YAML: mapping values are not allowed in this context"},
		"unknown anchor":    {change("cluster: home", "cluster: *home"), "2:10: not valid YAML: unknown anchor 'home' referenced"},
		"deep":              {change("[isos]", strings.Repeat("[", 20000)), "7:10014: not valid YAML: while increasing flow level: exceeded max depth of 10000"},
		"not UTF-8":         {change("home", "hö\xffme"), "2:12: not UTF-8 text"},
		"control character": {change("home", "ho\x00me"), "2:12: not UTF-8 text"},
		"UTF-16":            {"\xff\xfev\x00", "1:1: not UTF-8 text"},
		"newer version":     {"version: 2\nsomething: new\n", "1:1: version: 2 was made for a newer recast: this one reads version 1"},
		"no such version":   {"version: 0\nsomething: old\n", "1:1: version: there is no version 0 of this file: use 1"},
		"version as text":   {change("version: 1", `version: "1"`), "1:1: version: must be a whole number, not text"},
		"no version":        {change("version: 1\n", ""), "1:1: version: required"},
	}
}

func keyCases() map[string]problemCase {
	return map[string]problemCase{
		"misspelt section":  {change("cluster:", "clutser:"), `2:1: clutser: unknown key, did you mean "cluster"?`},
		"misspelt key":      {change("  vmids", "  vmIDs"), `12:3: proxmox.vmIDs: unknown key, did you mean "vmids"?`},
		"unknown key":       {change("  version: v1", "  flavour: salty\n  version: v1"), "4:3: talos.flavour: unknown key, expected one of version, config, machineConfigs"},
		"key with a colour": {small + "\"\\e[31m.x\": 1\n", `16:1: "\x1b[31m.x": unknown key, expected one of version, cluster, talos, kubernetes, images, schematics, proxmox, vmClasses, nodes, roll, history, notify`},
		"key given twice":   {small + "cluster: away\n", "16:1: cluster: already exists (line 2)"},
		"node key twice":    {withNode("name: cp2"), "16:5: nodes[0].name: already exists (line 14)"},
		"key is a number":   {small + "1: x\n", "16:1: 1: a key must be text: put it in quotes"},
		"key is a list":     {small + "? [a]\n: x\n", `16:3: "": a key must be text: put it in quotes`},
		"merge key":         {withNode("<<: {vmid: 101}"), `16:5: nodes[0]."<<": merge keys are not supported: write the keys out`},
		"no value":          {change("cluster: home", "cluster:"), "2:1: cluster: has no value: give it one or remove it"},
		"no value, null":    {withRoll("settle: ~"), "17:3: roll.settle: has no value: give it one or remove it"},
		"section missing":   {withNodes(""), "1:1: nodes: required"},
		"key missing":       {change("  vmids: 9000-9099\n", ""), "10:1: proxmox.vmids: required"},
		"node key missing":  {change("    schematic: default\n", ""), "14:5: nodes[0].schematic: required"},
		"iso missing":       {change("  iso:\n    storage: [isos]", "  arch: amd64"), "5:1: images.iso: required"},
		"token":             {withProxmox("token: root@pam!x=1234"), "11:3: proxmox.token: secrets never live in this file: export PROXMOX_VE_API_TOKEN"},
		"password":          {withProxmox("rootPassword: hunter2"), "11:3: proxmox.rootPassword: secrets never live in this file: export PROXMOX_VE_API_TOKEN"},
		"insecure":          {withProxmox("insecure: true"), "11:3: proxmox.insecure: TLS is always verified: give fingerprint or caFile"},
	}
}

func machineConfigCases() map[string]problemCase {
	with := func(value string) string {
		return change("  version: v1.13.9", "  version: v1.13.9\n  machineConfigs: "+value)
	}
	const at = "5:3: talos.machineConfigs"
	return map[string]problemCase{
		"empty path":       {with(`""`), at + ": is empty: name a directory, or a command, or render, or remove it"},
		"empty section":    {with("{}"), at + ": is empty: name a directory, or a command, or render, or remove it"},
		"empty dir":        {with(`{dir: ""}`), "5:20: talos.machineConfigs.dir: is empty: give it a value or remove it"},
		"dir and command":  {with(`{dir: a, command: [b, "{out}"]}`), "5:28: talos.machineConfigs.command: dir is given too (line 5): keep one of them"},
		"empty command":    {with("{command: []}"), "5:20: talos.machineConfigs.command: is empty: name a program or remove it"},
		"empty argument":   {with(`{command: [a, "", "{out}"]}`), "5:33: talos.machineConfigs.command[1]: is empty: give it a value or remove it"},
		"output nowhere":   {with("{command: [talhelper, genconfig]}"), "5:20: talos.machineConfigs.command: does not say where its output goes: give it {out} as an argument, which recast replaces by the path of an empty directory"},
		"output as itself": {with(`{command: ["{out}"]}`), "5:20: talos.machineConfigs.command: does not say where its output goes: give it {out} as an argument, which recast replaces by the path of an empty directory"},
		"proxmox token":    {with("{dir: a, env: [PROXMOX_VE_API_TOKEN]}"), "5:34: talos.machineConfigs.env[0]: recast passes its Proxmox token to no program: give this one its own token"},
		"one file for all": {with("{dir: a, names: all.yaml}"), `5:28: talos.machineConfigs.names: "all.yaml" has no {node}: every node would get the same file`},
		"out of the dir":   {with(`{dir: a, names: "../{node}.yaml"}`), `5:28: talos.machineConfigs.names: "../{node}.yaml" leads out of the directory`},
		"unknown place":    {with(`{dir: a, names: "{role}-{node}.yaml"}`), `5:28: talos.machineConfigs.names: "{role}-{node}.yaml" has a placeholder other than {node} and {cluster}`},
		"no names":         {with(`{names: "{node}"}`), at + ": is empty: name a directory, or a command, or render, or remove it"},
	}
}

func typeCases() map[string]problemCase {
	return map[string]problemCase{
		"text for a section":    {withNodes("nodes: cp1"), "13:1: nodes: must be a list, not text"},
		"section for a list":    {withNodes("nodes: {cp1: {}}"), "13:1: nodes: must be a list, not a section"},
		"list for a section":    {withRoll("drain: [10m]"), "17:3: roll.drain: must be a section with keys, not a list"},
		"list item":             {withNodes("nodes:\n  - cp1"), "14:5: nodes[0]: must be a section with keys, not text"},
		"number for text":       {change("version: v1.13.9", "version: 1.13"), "4:3: talos.version: must be text, not the number 1.13: put it in quotes"},
		"date for text":         {change("home", "2026-01-01"), "2:1: cluster: must be text, not the date 2026-01-01: put it in quotes"},
		"bool for text":         {change("home", "true"), "2:1: cluster: must be text, not true: put it in quotes"},
		"list for text":         {change("home", "[home]"), "2:1: cluster: must be text, not a list"},
		"tagged text":           {change("home", "!!binary aG9tZQ=="), `2:1: cluster: must be text, not a value tagged "!!binary": put it in quotes`},
		"text for a number":     {withNode(`vmid: "101"`), "16:5: nodes[0].vmid: must be a whole number, not text"},
		"fraction":              {withNode("vmid: 1.5"), "16:5: nodes[0].vmid: must be a whole number, not the number 1.5"},
		"octal":                 {withNode("vmid: 0144"), `16:5: nodes[0].vmid: "0144" is not a plain decimal number`},
		"enormous":              {withNode("vmid: 99999999999999999999"), "16:5: nodes[0].vmid: must be a whole number, not the number 99999999999999999999"},
		"yes for true":          {withRoll("workersBeside: yes"), "17:3: roll.workersBeside: must be true or false, not text"},
		"number as canary":      {withRoll("canary: 1"), "17:3: roll.canary: must be true, false or the name of a node, not the number 1"},
		"storage":               {withRoll("storage: offf"), `17:3: roll.storage: "offf" is not one of on, off, or a section such as {linstor: off}, did you mean "off"?`},
		"storage as a number":   {withRoll("storage: 1"), "17:3: roll.storage: must be on, off, or a section such as {linstor: off}, not the number 1"},
		"storage of a system":   {withRoll("storage: {linstor: offf}"), `17:13: roll.storage.linstor: "offf" is not one of on, off, did you mean "off"?`},
		"unknown system":        {withRoll("storage: {longhorm: off}"), `17:13: roll.storage.longhorm: unknown key, did you mean "longhorn"?`},
		"unknown canary":        {withRoll("canary: wk9"), `17:3: roll.canary: "wk9" is not in nodes (line 13): write true, false or the name of a node`},
		"duration, no unit":     {withRoll("settle: 30"), `17:3: roll.settle: "30" is not a duration: write it like 30s, 10m or 1h30m`},
		"duration, words":       {withRoll("settle: a while"), `17:3: roll.settle: "a while" is not a duration: write it like 30s, 10m or 1h30m`},
		"duration, list":        {withRoll("settle: [30s]"), "17:3: roll.settle: must be a duration such as 10m, not a list"},
		"duration, zero":        {withRoll("poll: 0s"), "17:3: roll.poll: must be longer than 0"},
		"duration, negative":    {withRoll("timeouts: {boot: -1m}"), "17:14: roll.timeouts.boot: must be longer than 0"},
		"schematic, a number":   {change("base.yaml", "5"), "9:3: schematics.default: must be the path of a file, not the number 5"},
		"range, a number":       {change("9000-9099", "9000"), "12:3: proxmox.vmids: must be a range such as 9000-9099, not the number 9000"},
		"range, a section":      {change("9000-9099", "{first: 9000}"), "12:3: proxmox.vmids: must be a range such as 9000-9099, not a section"},
		"endpoints, no list":    {change(`["https://pve1:8006"]`, `"https://pve1:8006"`), "11:3: proxmox.endpoints: must be a list, not text"},
		"list item, no value":   {change("[isos]", "[isos, ~]"), "7:21: images.iso.storage[1]: has no value: give it one or remove it"},
		"anchor of a bad value": {small + "roll:\n  settle: &d 1x\n  canary: true\n", `17:3: roll.settle: "1x" is not a duration: write it like 30s, 10m or 1h30m`},
	}
}

func enumCases() map[string]problemCase {
	return map[string]problemCase{
		"unknown delivery": {change("    storage:", "    delivery: download\n    storage:"), `7:5: images.iso.delivery: "download" is not one of auto, download-url, upload`},
		"unknown strategy": {withNode("strategy: inplace"), `16:5: nodes[0].strategy: "inplace" is not one of auto, recreate, reimage, in-place, did you mean "in-place"?`},
		"unknown order":    {withRoll("order: worker-first"), `17:3: roll.order: "worker-first" is not one of control-planes-first, workers-first, did you mean "workers-first"?`},
		"unknown builder":  {withImages("builder: docker"), `6:3: images.builder: "docker" is not one of auto, factory, imager`},
		"unknown policy":   {withImages("signature: required"), `6:3: images.signature: "required" is not one of auto, require, warn, off, did you mean "require"?`},
	}
}

func valueCases() map[string]problemCase {
	return map[string]problemCase{
		"cluster name":             {change("home", "at home"), `2:1: cluster: "at home" is not a name of a cluster: letters, digits, '-', '_' and '.'`},
		"Talos without v":          {change("v1.13.9", "1.13.9"), `4:3: talos.version: "1.13.9" lacks its "v", did you mean "v1.13.9"?`},
		"Talos, two numbers":       {change("v1.13.9", "v1.13"), `4:3: talos.version: "v1.13" is not a version of Talos: write it like v1.13.9`},
		"Talos, a long word":       {change("v1.13.9", strings.Repeat("ö", 100)), `4:3: talos.version: "` + strings.Repeat("ö", 60) + `…" is not a version of Talos: write it like v1.13.9`},
		"empty path":               {change("  version: v1.13.9", "  version: v1.13.9\n  config: ''"), "5:3: talos.config: is empty: give it a value or remove it"},
		"factory, no URL":          {withImages("factory: factory.talos.dev"), "6:3: images.factory: is not the URL of a server: write it like https://host"},
		"factory, query":           {withImages("factory: https://factory.talos.dev?x=1"), "6:3: images.factory: has a query or fragment: give the server alone"},
		"extensions, URL":          {withImages("extensions: https://me:pw@ghcr.io/siderolabs"), "6:3: images.extensions: is not a registry and organization: write it like ghcr.io/siderolabs, without scheme and tag"},
		"extensions, tag":          {withImages("extensions: ghcr.io/siderolabs/extensions:v1.13.9"), "6:3: images.extensions: is not a registry and organization: write it like ghcr.io/siderolabs, without scheme and tag"},
		"mirror, scheme":           {withImages("mirror: https://ghcr.io/acme/talos"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, user":             {withImages("mirror: me:pw@ghcr.io/acme"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, tag":              {withImages("mirror: ghcr.io/acme/talos:v1"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, digest":           {withImages("mirror: ghcr.io/acme/talos@sha256:1"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, no registry":      {withImages("mirror: acme/talos"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, no path":          {withImages("mirror: ghcr.io"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, upper case":       {withImages("mirror: ghcr.io/Acme/talos"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"mirror, slash at the end": {withImages("mirror: ghcr.io/acme/"), "6:3: images.mirror: is not a repository: write it like ghcr.io/acme/talos, in lower case, without scheme, user, tag and digest"},
		"no storage":               {change("[isos]", "[]"), "7:5: images.iso.storage: is empty: name a Proxmox storage with content type iso"},
		"storage name":             {change("[isos]", "['local:iso']"), `7:15: images.iso.storage[0]: "local:iso" is not a name of a Proxmox storage`},
		"storage twice":            {change("[isos]", "[isos, local, isos]"), `7:28: images.iso.storage[2]: "isos" is listed already (line 7)`},
		"no schematics":            {change("schematics:\n  default: base.yaml", "schematics: {}\n"), "8:1: schematics: is empty: name at least one schematic"},
		"schematic, empty":         {change("base.yaml", "''"), "9:3: schematics.default: is empty: name its file"},
		"schematic, no file":       {change("base.yaml", "{}"), "9:3: schematics.default.file: required"},
		"schematic unknown":        {change("schematic: default", "schematic: defualt"), `15:5: nodes[0].schematic: "defualt" is not in schematics (line 8), did you mean "default"?`},
		"no endpoint":              {change(`["https://pve1:8006"]`, "[]"), "11:3: proxmox.endpoints: is empty: give at least one, like https://pve1.example:8006"},
		"endpoint, http":           {change("https://pve1", "http://pve1"), "11:15: proxmox.endpoints[0]: is not the URL of a server: write it like https://host"},
		"endpoint, no host":        {change("https://pve1:8006", "https://:8006"), "11:15: proxmox.endpoints[0]: is not the URL of a server: write it like https://host"},
		"endpoint, password":       {change("https://pve1", "https://root:hunter2@pve1"), "11:15: proxmox.endpoints[0]: holds a user or password: secrets never live in this file"},
		"endpoint, bad escape":     {change("https://pve1", "https://root:hunter2%@pve1"), "11:15: proxmox.endpoints[0]: is not the URL of a server: write it like https://host"},
		"endpoint, path":           {change("8006", "8006/api2/json"), "11:15: proxmox.endpoints[0]: has a path: give the server alone, like https://pve1.example:8006"},
		"endpoint twice":           {change(`8006"]`, `8006", "https://pve1:8006/"]`), "11:36: proxmox.endpoints[1]: is listed already (line 11)"},
		"fingerprint":              {withProxmox("fingerprint: AA:BB"), `11:3: proxmox.fingerprint: "AA:BB" is not a SHA-256 fingerprint: 32 pairs of hex digits with colons between, as pvenode cert info shows it`},
		"fingerprint and CA":       {withProxmox("caFile: ca.pem\n  fingerprint: AA" + strings.Repeat(":AA", 31)), "11:3: proxmox.caFile: fingerprint is given too (line 12): keep one of them"},
	}
}

func nodeCases() map[string]problemCase {
	return map[string]problemCase{
		"range, words":        {change("9000-9099", "many"), `12:3: proxmox.vmids: "many" is not a range of VMIDs: write it like 9000-9099`},
		"range, too low":      {change("9000-9099", "1-200"), `12:3: proxmox.vmids: "1-200" is out of bounds: Proxmox allows 100-999999999`},
		"range, too high":     {change("9000-9099", "9000-1000000000"), `12:3: proxmox.vmids: "9000-1000000000" is out of bounds: Proxmox allows 100-999999999`},
		"range, backwards":    {change("9000-9099", "9099-9000"), `12:3: proxmox.vmids: "9099-9000" runs backwards: did you mean 9000-9099?`},
		"range, of one":       {change("9000-9099", "9000-9000"), "12:3: proxmox.vmids: 9000-9000 is too small: recast needs one VMID for its claim and one for parked disks"},
		"no nodes":            {withNodes("nodes: []"), "13:1: nodes: is empty: name at least one node"},
		"node name":           {change("cp1", "CP_1"), `14:5: nodes[0].name: "CP_1" is not a name of a node: lower-case letters, digits and '-', at most 63, and maybe a domain`},
		"node twice":          {small + "  - {schematic: default, name: cp1}\n", `16:26: nodes[1].name: "cp1" already exists (line 14)`},
		"vmid twice":          {withNode("vmid: 101\n  - {name: cp2, schematic: default, vmid: 101}"), `17:37: nodes[1].vmid: 101 is already used by "cp1" (line 16)`},
		"vmid, zero":          {withNode("vmid: 0"), "16:5: nodes[0].vmid: 0 is out of bounds: Proxmox allows 100-999999999"},
		"vmid, negative":      {withNode("vmid: -1"), "16:5: nodes[0].vmid: -1 is out of bounds: Proxmox allows 100-999999999"},
		"holder, zero":        {withNode("holder: 0"), "16:5: nodes[0].holder: 0 is out of bounds: Proxmox allows 100-999999999"},
		"holder is the VM":    {withNode("vmid: 101\n    holder: 101"), `17:5: nodes[0].holder: 101 is the VM of node "cp1" (line 16): a holder must be another VM`},
		"holder is a node":    {withNode("holder: 102\n  - {name: cp2, schematic: default, vmid: 102}"), `16:5: nodes[0].holder: 102 is the VM of node "cp2" (line 17): a holder must be another VM`},
		"loss of nothing":     {withNode("acceptLoss: [pv/a, ' ']"), "16:24: nodes[0].acceptLoss[1]: is empty: give the name that the plan shows, or remove it"},
		"loss twice":          {withNode("acceptLoss: [pv/a, pv/b, pv/a]"), `16:30: nodes[0].acceptLoss[2]: "pv/a" is listed already (line 16)`},
		"loss, no list":       {withNode("acceptLoss: pv/a"), "16:5: nodes[0].acceptLoss: must be a list, not text"},
		"slot":                {withNode("systemDisk: {slot: scsi31}"), `16:18: nodes[0].systemDisk.slot: "scsi31" is not a slot of a disk: write it like scsi0, virtio0 or sata0`},
		"size":                {withNode("systemDisk: {sizeGiB: 0}"), "16:18: nodes[0].systemDisk.sizeGiB: must be at least 1"},
		"name of a schematic": {change("  default: base.yaml", "  default: base.yaml\n  a b: base.yaml"), `10:3: schematics."a b": "a b" is not a name of a schematic: letters, digits, '-' and '_'`},
	}
}

func rollCases() map[string]problemCase {
	const workers = "17:20: roll.maxUnavailable.workers: "
	share := func(s string) string { return withRoll("maxUnavailable: {workers: " + s + "}") }
	return map[string]problemCase{
		"workers, none":         {share("0"), workers + "must be at least 1"},
		"workers, 0%":           {share("0%"), workers + "must be at least 1"},
		"workers, negative":     {share("-1"), workers + "must be at least 1"},
		"workers, 101%":         {share("101%"), workers + `"101%" is more than all of them: 100% is the most`},
		"workers, a fraction":   {share("1.5"), workers + `"1.5" is neither a number nor a percentage: write it like 2 or 20%`},
		"workers, octal":        {share("010"), workers + `"010" is neither a number nor a percentage: write it like 2 or 20%`},
		"workers, half percent": {share("0.5%"), workers + `"0.5%" is neither a number nor a percentage: write it like 2 or 20%`},
		"workers, a word":       {share("some"), workers + `"some" is neither a number nor a percentage: write it like 2 or 20%`},
		"workers, true":         {share("true"), workers + "must be a number such as 2 or a percentage such as 20%, not true"},
		"workers, a section":    {share("{count: 1}"), workers + "must be a number such as 2 or a percentage such as 20%, not a section"},
		"per host, none":        {withRoll("maxUnavailable: {perHost: 0}"), "17:20: roll.maxUnavailable.perHost: must be at least 1"},
		"per host, percentage":  {withRoll("maxUnavailable: {perHost: 20%}"), "17:20: roll.maxUnavailable.perHost: must be a whole number, not text"},
		"drain on timeout":      {withRoll("drain: {onTimeout: force}"), `17:11: roll.drain.onTimeout: "force" is not one of stop, delete`},
		"boot failure":          {withRoll("bootFailure: roll-back"), `17:3: roll.bootFailure: "roll-back" is not one of stop, rollback, reimage, did you mean "rollback"?`},
		"disks kept, none":      {withRoll("keepDisks: 0"), "17:3: roll.keepDisks: must be at least 1: it is the way back; recast prune --keep-disks 0 frees it too"},
		"disks kept, a word":    {withRoll("keepDisks: all"), "17:3: roll.keepDisks: must be a whole number, not text"},
		"ignored, no name":      {withRoll("ignoreNodes: [wk1, '']"), "17:22: roll.ignoreNodes[1]: is empty: give the name of a node, or remove it"},
		"ignored twice":         {withRoll("ignoreNodes: [wk1, wk1]"), `17:22: roll.ignoreNodes[1]: "wk1" is listed already (line 17)`},
		"ignored, no list":      {withRoll("ignoreNodes: wk1"), "17:3: roll.ignoreNodes: must be a list, not text"},
		"etcd snapshot, empty":  {withRoll("etcdSnapshot: ''"), "17:3: roll.etcdSnapshot: is empty: give it a value or remove it"},
		"Kubernetes without v":  {small + "kubernetes: {version: 1.35.4}\n", `16:14: kubernetes.version: "1.35.4" lacks its "v", did you mean "v1.35.4"?`},
		"Kubernetes, a minor":   {small + "kubernetes: {version: v1.35}\n", `16:14: kubernetes.version: "v1.35" is not a version of Kubernetes: write it like v1.35.4`},
		"Kubernetes, none":      {small + "kubernetes: {}\n", "16:1: kubernetes.version: required"},
	}
}

// withGate is small with one gate of those keys, written in braces.
func withGate(keys string) string { return withRoll("gates:\n    - {" + keys + "}") }

const cephGate = "apiVersion: ceph.rook.io/v1, kind: CephCluster, expr: status.ok"

func gateCases() map[string]problemCase {
	return map[string]problemCase{
		"no list":            {withRoll("gates: {}"), "17:3: roll.gates: must be a list, not a section"},
		"nothing":            {withGate("when: both, kind: A, expr: a"), "18:7: roll.gates[0].apiVersion: required, unless the gate runs a command"},
		"no expression":      {withGate("apiVersion: v1, kind: Node"), "18:7: roll.gates[0].expr: required, unless the gate runs a command"},
		"blank expression":   {withGate("apiVersion: v1, kind: Node, expr: ' '"), "18:36: roll.gates[0].expr: required, unless the gate runs a command"},
		"misspelt key":       {withGate(cephGate + ", labelselector: {}"), `18:73: roll.gates[0].labelselector: unknown key, did you mean "labelSelector"?`},
		"unknown time":       {withGate(cephGate + ", when: after"), `18:73: roll.gates[0].when: "after" is not one of both, before`},
		"no time at all":     {withGate(cephGate + ", timeout: 0s"), "18:73: roll.gates[0].timeout: must be longer than 0"},
		"no version":         {withGate("apiVersion: ceph.rook.io, kind: A, expr: a"), `18:8: roll.gates[0].apiVersion: "ceph.rook.io" is not a group and version of the Kubernetes API: write it like ceph.rook.io/v1`},
		"resource, not kind": {withGate("apiVersion: v1, kind: nodes, expr: a"), `18:24: roll.gates[0].kind: "nodes" is not a kind of Kubernetes object: write it like CephCluster`},
		"namespace":          {withGate(cephGate + ", namespace: Rook"), `18:73: roll.gates[0].namespace: "Rook" is not a name of a namespace`},
		"secrets":            {withGate("apiVersion: v1, kind: Secret, expr: a"), "18:24: roll.gates[0].kind: Secrets are not allowed: the values that an expression reads are shown"},
		"name and labels":    {withGate(cephGate + ", name: a, labelSelector: {matchLabels: {a: b}}"), "18:82: roll.gates[0].labelSelector: name is given too (line 18): keep one of them"},
		"no labels":          {withGate(cephGate + ", labelSelector: {}"), "18:73: roll.gates[0].labelSelector: selects every object: give it matchLabels or matchExpressions, or remove it"},
		"key of a label":     {withGate(cephGate + ", labelSelector: {matchLabels: {'a b': c}}"), `18:103: roll.gates[0].labelSelector.matchLabels."a b": "a b" is not the key of a label`},
		"value of a label":   {withGate(cephGate + ", labelSelector: {matchLabels: {a: 'b,c'}}"), `18:103: roll.gates[0].labelSelector.matchLabels.a: "b,c" is not the value of a label`},
		"operator":           {withGate(cephGate + ", labelSelector: {matchExpressions: [{key: a, operator: Is}]}"), `18:117: roll.gates[0].labelSelector.matchExpressions[0].operator: "Is" is not one of In, NotIn, Exists, DoesNotExist, did you mean "In"?`},
		"no values":          {withGate(cephGate + ", labelSelector: {matchExpressions: [{key: a, operator: In}]}"), "18:108: roll.gates[0].labelSelector.matchExpressions[0].values: required by In"},
		"values too many":    {withGate(cephGate + ", labelSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"), "18:135: roll.gates[0].labelSelector.matchExpressions[0].values: Exists takes none: remove them"},
		"empty command":      {withGate("command: []"), "18:8: roll.gates[0].command: names no program: write it like [./check.sh, argument]"},
		"command as text":    {withGate("command: ./check.sh"), "18:8: roll.gates[0].command: must be a list, not text"},
		"command and kind":   {withGate("command: [check], kind: Node"), "18:26: roll.gates[0].kind: the gate runs a command (line 18): write two gates"},
		"two lines":          {withGate(`command: [check], description: "a\nb"`), "18:26: roll.gates[0].description: has more than one line"},
	}
}

func TestGates(t *testing.T) {
	t.Parallel()
	// Its first one is a health check as tuppr has them.
	got := must.Get(config.Parse("recast.yaml", []byte(small+`roll:
  gates:
    - apiVersion: ceph.rook.io/v1
      kind: CephCluster
      name: ceph
      namespace: rook-ceph
      description: Ceph
      timeout: 30m
      expr: status.ceph.health in ['HEALTH_OK']
    - apiVersion: apps/v1
      kind: Deployment
      labelSelector:
        matchLabels: {tier: gold, app: ""}
        matchExpressions:
          - {key: env, operator: NotIn, values: [test, dev]}
          - {key: a.b/c, operator: Exists}
          - {key: d, operator: DoesNotExist}
      expr: "true"
      optional: true
    - {command: [./check.sh, "1"], when: before}
`), config.Options{}))(t)
	want := []config.Gate{
		{
			APIVersion: "ceph.rook.io/v1", Kind: "CephCluster", Name: "ceph", Namespace: "rook-ceph", Description: "Ceph",
			When: "both", Timeout: minutes(30), Expr: "status.ceph.health in ['HEALTH_OK']",
		},
		{APIVersion: "apps/v1", Kind: "Deployment", When: "both", Timeout: minutes(10), Expr: "true", Optional: true, LabelSelector: config.LabelSelector{
			MatchLabels: map[string]string{"tier": "gold", "app": ""},
			MatchExpressions: []config.LabelExpression{
				{Key: "env", Operator: "NotIn", Values: []string{"test", "dev"}}, {Key: "a.b/c", Operator: "Exists"}, {Key: "d", Operator: "DoesNotExist"},
			},
		}},
		{Command: []string{"./check.sh", "1"}, When: "before", Timeout: config.Duration(10 * time.Minute)},
	}
	must.Equal(t, "value", want, got.Roll.Gates)
	out := must.Get(got.Marshal())(t)
	again, err := config.Parse("again.yaml", out, config.Options{})
	must.Be(t, err == nil, "%v:\n%s", err, out)
	must.Equal(t, "written and read again", want, again.Roll.Gates)
	must.Equal(t, "selector", "app=,tier=gold,env notin (test,dev),a.b/c,!d", got.Roll.Gates[1].LabelSelector.String())
}

// A bad expression is reported with all other problems.
func TestGateExpression(t *testing.T) {
	t.Parallel()
	o := config.Options{Expr: func(expr string) error {
		if expr == "status.ok" {
			return nil
		}
		return errors.New("not a valid expression: 1:1: undeclared reference to 'statu'")
	}}
	_, err := config.Parse("recast.yaml", []byte(withGate("apiVersion: v1, kind: Node, expr: statu.ok")+"    - {"+cephGate+", timeout: 1}\n"), o)
	check(t, err, `recast.yaml:18:36: roll.gates[0].expr: not a valid expression: 1:1: undeclared reference to 'statu'
recast.yaml:19:73: roll.gates[1].timeout: "1" is not a duration: write it like 30s, 10m or 1h30m
2 problems`)
}

// withHook is small with one hook of those keys, written in braces.
func withHook(keys string) string { return withRoll("hooks:\n    beforeNode: [{" + keys + "}]") }

func hookCases() map[string]problemCase {
	return map[string]problemCase{
		"a list":          {withRoll("hooks: []"), "17:3: roll.hooks: must be a section with keys, not a list"},
		"unknown point":   {withRoll("hooks: {beforeNodes: []}"), `17:11: roll.hooks.beforeNodes: unknown key, did you mean "beforeNode"?`},
		"one hook":        {withRoll("hooks: {beforeNode: {command: [a]}}"), "17:11: roll.hooks.beforeNode: must be a list, not a section"},
		"no command":      {withHook("timeout: 1m"), "18:18: roll.hooks.beforeNode[0].command: required"},
		"empty command":   {withHook("command: []"), "18:19: roll.hooks.beforeNode[0].command: names no program: write it like [./drain-lb.sh, argument]"},
		"blank command":   {withHook("command: [' ']"), "18:19: roll.hooks.beforeNode[0].command: names no program: write it like [./drain-lb.sh, argument]"},
		"command as text": {withHook("command: ./a.sh"), "18:19: roll.hooks.beforeNode[0].command: must be a list, not text"},
		"no time at all":  {withHook("command: [a], timeout: 0s"), "18:33: roll.hooks.beforeNode[0].timeout: must be longer than 0"},
		"no unit":         {withHook("command: [a], timeout: 10"), `18:33: roll.hooks.beforeNode[0].timeout: "10" is not a duration: write it like 30s, 10m or 1h30m`},
		"two lines":       {withHook(`command: [a], description: "a\nb"`), "18:33: roll.hooks.beforeNode[0].description: has more than one line"},
		"no name":         {withHook(`command: [a], description: ""`), "18:33: roll.hooks.beforeNode[0].description: is empty: give it a value or remove it"},
		"an environment":  {withHook("command: [a], env: {A: b}"), "18:33: roll.hooks.beforeNode[0].env: must be a list, not a section"},
		"a value":         {withHook("command: [a], env: [A=b]"), `18:39: roll.hooks.beforeNode[0].env[0]: "A=b" is not the name of an environment variable: list only names, not values`},
		"recast's token":  {withHook("command: [a], env: [A, PROXMOX_VE_API_TOKEN]"), "18:42: roll.hooks.beforeNode[0].env[1]: recast passes its Proxmox token to no program: give this one its own token"},
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	got := must.Get(config.Parse("recast.yaml", []byte(small+`roll:
  hooks:
    beforeRun:
      - {description: freeze deployments, command: [./freeze.sh, "on"], timeout: 5m}
      - command: [date]
    afterNode: [{command: [ceph, osd, unset, noout]}]
`), config.Options{}))(t)
	minute := config.Duration(time.Minute)
	want := config.Hooks{
		BeforeRun: []config.Hook{
			{Description: "freeze deployments", Command: []string{"./freeze.sh", "on"}, Timeout: 5 * minute}, {Command: []string{"date"}, Timeout: minute},
		},
		AfterNode: []config.Hook{{Command: []string{"ceph", "osd", "unset", "noout"}, Timeout: minute}},
	}
	must.Equal(t, "value", want, got.Roll.Hooks)
	out := must.Get(got.Marshal())(t)
	again, err := config.Parse("again.yaml", out, config.Options{})
	must.Be(t, err == nil, "%v:\n%s", err, out)
	must.Equal(t, "written and read again", want, again.Roll.Hooks)
}

// TestProgramIsThere: a program that is given by path must exist, relative to recast.yaml.
func TestProgramIsThere(t *testing.T) {
	t.Parallel()
	for list, c := range map[string]struct{ text, where string }{
		"gates": {withGate("command: [./run.sh]") + "    - {command: [sh]}\n", ":18:8: roll.gates[0]"},
		"hooks": {withHook("command: [./run.sh]") + "    afterRun: [{command: [sh]}]\n", ":18:19: roll.hooks.beforeNode[0]"},
	} {
		path := filepath.Join(t.TempDir(), "recast.yaml")
		must.Do(t, os.WriteFile(path, []byte(c.text), 0o600))
		program := filepath.Join(filepath.Dir(path), "run.sh")
		_, err := config.Load(path, config.Options{})
		must.Contain(t, "error", fmt.Sprint(err), path+c.where+".command: no such file: "+program)
		must.Do(t, os.WriteFile(program, nil, 0o700))
		if _, err := config.Load(path, config.Options{}); err != nil && strings.Contains(err.Error(), list) {
			t.Error(err)
		}
	}
}

// withWebhook is small with one webhook of those keys, written in braces.
func withWebhook(keys string) string { return small + "notify:\n  - {" + keys + "}\n" }

const aURL = "url: https://h/p"

func webhookCases() map[string]problemCase {
	return map[string]problemCase{
		"no list":         {small + "notify: {}\n", "16:1: notify: must be a list, not a section"},
		"nowhere":         {withWebhook("on: [end]"), "17:5: notify[0]: has neither url nor urlEnv: say where to send it"},
		"two places":      {withWebhook(aURL + ", urlEnv: A"), "17:24: notify[0].urlEnv: url is given too (line 17): keep one of them"},
		"no URL":          {withWebhook("url: h/p"), "17:6: notify[0].url: is not a URL: write it like https://host/path"},
		"another scheme":  {withWebhook("url: ftp://h/p"), "17:6: notify[0].url: is not a URL: write it like https://host/path"},
		"a password":      {withWebhook("url: https://u:p@h/"), "17:6: notify[0].url: holds a user or password: secrets never live in this file, urlEnv names a variable"},
		"a query":         {withWebhook("url: https://h/?sig=1"), "17:6: notify[0].url: has a query or fragment, which often is a secret: urlEnv names an environment variable for the URL"},
		"in the clear":    {withWebhook("url: http://h/, headers: {A: {env: B}}"), "17:6: notify[0].url: is not https, and what headers takes from the environment would go in the clear"},
		"no variable":     {withWebhook("urlEnv: $A"), `17:6: notify[0].urlEnv: "$A" is not a name of an environment variable`},
		"no event":        {withWebhook(aURL + ", on: []"), "17:24: notify[0].on: is empty: list some of start, failure, end"},
		"unknown event":   {withWebhook(aURL + ", on: [end, fail]"), `17:34: notify[0].on[1]: "fail" is not one of start, failure, end`},
		"twice":           {withWebhook(aURL + ", on: [end, end]"), "17:34: notify[0].on[1]: is listed already"},
		"value in file":   {withWebhook(aURL + ", headers: {Authorization: Bearer x}"), "17:34: notify[0].headers.Authorization: must be a section with keys, not text"},
		"no value":        {withWebhook(aURL + ", headers: {Authorization: {}}"), "17:34: notify[0].headers.Authorization.env: required"},
		"no header":       {withWebhook(aURL + ", headers: {'A b': {env: B}}"), `17:34: notify[0].headers."A b": "A b" is not the name of a header`},
		"type as header":  {withWebhook(aURL + ", headers: {content-type: {env: B}}"), "17:34: notify[0].headers.content-type: is set by contentType"},
		"another host":    {withWebhook(aURL + ", headers: {Host: {env: B}}"), "17:34: notify[0].headers.Host: is set by the HTTP client: remove it"},
		"no media type":   {withWebhook(aURL + ", contentType: json"), `17:24: notify[0].contentType: "json" is not a media type: write it like application/json`},
		"no template":     {withWebhook(aURL + ", template: ''"), "17:24: notify[0].template: is empty: give it a value or remove it"},
		"secret as a key": {withWebhook(aURL + ", token: x"), "17:24: notify[0].token: secrets never live in this file: export PROXMOX_VE_API_TOKEN"},
	}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	got := must.Get(config.Parse("dir/recast.yaml", []byte(small+`notify:
  - {url: "http://127.0.0.1:8080/hook"}
  - urlEnv: SLACK_URL
    on: [failure]
    headers: {Authorization: {env: WEBHOOK_AUTH}}
    contentType: text/plain; charset=utf-8
    template: "{{.Text}}"
    caFile: ca.pem
`), config.Options{Dir: "dir"}))(t)
	want := []config.Webhook{
		{URL: "http://127.0.0.1:8080/hook", On: []string{"start", "failure", "end"}, ContentType: "application/json"},
		{
			URLEnv: "SLACK_URL", On: []string{"failure"}, Headers: map[string]config.Header{"Authorization": {Env: "WEBHOOK_AUTH"}},
			ContentType: "text/plain; charset=utf-8", Template: "{{.Text}}", CAFile: "dir/ca.pem",
		},
	}
	must.Equal(t, "value", want, got.Notify)
	out := must.Get(got.Marshal())(t)
	if again, err := config.Parse("again.yaml", out, config.Options{}); err != nil || !cmp.Equal(want, again.Notify) {
		t.Errorf("%v, from\n%s", err, out)
	}
}

// A bad template is reported with all other problems.
func TestWebhookTemplate(t *testing.T) {
	t.Parallel()
	o := config.Options{Template: func(string) error { return errors.New("unclosed action") }}
	_, err := config.Parse("recast.yaml", []byte(withWebhook(aURL+", template: '{{.Text'")), o)
	check(t, err, "recast.yaml:17:24: notify[0].template: unclosed action\n1 problem")
}
