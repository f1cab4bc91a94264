// Package rolling has what every step of a node shares while it is rolled. [Node] is the
// handle: the ports, what the plan says of the node, and what its record and the journal
// remember of it. It has no state of its own but who is out, so a step may ask it at any time.
package rolling
