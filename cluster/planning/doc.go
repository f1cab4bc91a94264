// Package planning decides what happens to each node, how and in which order, before anything is touched. [New]
// makes a [Plan] of what is wanted and what was observed; a plan can be sealed in a file, read again and compared
// with the world of that day.
package planning
