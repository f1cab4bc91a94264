package linstor

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	allowEviction = "DrbdOptions/AutoEvictAllowEviction"
	evictAfter    = "DrbdOptions/AutoEvictAfterTime"
)

// evict gives up nodes that are away for too long, unless more than a third of all are away (getFailedPeers in
// ReconnectorTask.java, whose defaults these are).
func (c *Controller) evict(due func(key string, d time.Duration) bool) {
	away := 0
	for _, n := range c.nodes {
		if !c.online[n] && !c.evicted[n] {
			away++
		}
	}
	for _, n := range c.nodes {
		minutes, err := strconv.Atoi(c.property(n, evictAfter, "720"))
		if err != nil || c.up[n] || c.evicted[n] || !due("linstor/"+n+"/evicted", time.Duration(minutes)*time.Minute) {
			continue
		}
		if strings.EqualFold(c.property(n, allowEviction, "false"), "true") && float64(away) <= math.Round(34*float64(len(c.nodes))/100) {
			c.evicted[n] = true
			for _, v := range c.volumes {
				c.replace(v, n)
			}
		}
	}
}

// property is a node's, or the controller's.
func (c *Controller) property(node, key, otherwise string) string {
	for _, props := range []map[string]string{c.ofNode[node], c.props} {
		if value, set := props[key]; set {
			return value
		}
	}
	return otherwise
}

// replace makes a copy elsewhere in place of one on a node that was evicted, unless enough are left
// (CtrlRscAutoRePlaceRscHelper.java).
func (c *Controller) replace(v *Volume, node string) {
	here, left := false, 0
	for _, k := range v.Copies {
		if here = here || k.Node == node; !c.evicted[k.Node] {
			left++
		}
	}
	if !here || left >= v.Wanted {
		return
	}
	for _, n := range c.nodes {
		if c.online[n] && !slices.Contains(v.peers(), n) {
			v.Copies = append(v.Copies, &Copy{Node: n, Disk: "Inconsistent"})
			return
		}
	}
}

// answer is an ApiCallRc.
func answer(code int64, message string) []object {
	return []object{{"ret_code": code, "message": message}}
}

// Return codes of a change of a node (consts.json in linstor-common).
const (
	modified    = 0x023c0003
	maskError   = -0x4000000000000000
	invalidProp = maskError | 0x023c0000 | 213
	unknownNode = maskError | 0x023c0000 | 300
	parseError  = maskError | 0x0ffffffffffffffd
)

// modify is a PUT of a NodeModify. Nothing is changed if one of the properties can't be.
func (c *Controller) modify(w http.ResponseWriter, r *http.Request, node string) {
	var m struct {
		Type             string            `json:"node_type"`
		Set              map[string]string `json:"override_props"`
		Delete           []string          `json:"delete_props"`
		DeleteNamespaces []string          `json:"delete_namespaces"`
	}
	if err := decode(r, &m); err != nil {
		write(w, http.StatusBadRequest, answer(parseError, "Unable to parse input json."))
		return
	}
	if _, known := c.ofNode[node]; !known {
		write(w, http.StatusNotFound, answer(unknownNode, "Node '"+node+"' not found."))
		return
	}
	for key, value := range m.Set {
		_, err := strconv.ParseInt(value, 10, 64)
		switch isAux := strings.HasPrefix(key, "Aux/"); {
		case key == evictAfter && err != nil, key == allowEviction && !slices.Contains([]string{"true", "false"}, strings.ToLower(value)):
			write(w, http.StatusInternalServerError, answer(invalidProp, "Invalid property("+key+") value: "+value))
			return
		case !isAux && key != evictAfter && key != allowEviction:
			write(w, http.StatusInternalServerError, answer(invalidProp, "Invalid property key: "+key))
			return
		}
	}
	maps.Copy(c.ofNode[node], m.Set)
	for _, key := range m.Delete {
		delete(c.ofNode[node], key)
	}
	write(w, http.StatusOK, answer(modified, "Node '"+node+"' modified."))
}
