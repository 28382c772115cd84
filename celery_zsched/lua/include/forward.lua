-- forward: let an entry that waits be due no later than `at`, and wake who shall see to it.
local function forward(entry, at)
  for level = 1, #timelines do
    local due = call('ZSCORE', timelines[level], entry)
    if due and tonumber(due) > at then
      call('ZADD', timelines[level], stamp(at), entry)
      ring_for(at, bell, watch)
    end
  end
end
