-- levels: the sorted set where an id of a priority level waits. A level that this caller does not know (the number of
-- levels was lowered) is its last one, so that no id is left in no place.
local function waits_at(level)
  return timelines[math.max(0, math.min(level, #timelines - 1)) + 1]
end
