// Package rolling has what every step of a node shares while it is rolled. [Node] is the
// handle: the ports, what the plan says of the node, and what its record and the journal
// remember of it. It caches nothing, so a step may ask it at any time; what all nodes of a
// roll share, such as which of them are out, is in [Roll].
package rolling
