-- life: a queue may have a life of its own, that of its rules. When nobody renews it, all its keys go together.

-- How long the queue has left, in milliseconds; -1 for ever; nil if it was never declared, or is gone.
local function life_of(rules)
  local left = call('PTTL', rules)
  return left ~= -2 and left or nil
end

-- Give every key the life that the queue has left: one moment, since a relative life is counted from each call's own
-- millisecond, and a renewal between two of them would keep some keys without the others.
local function live_on(left)
  if left >= 0 then
    local ends = stamp(math.floor(now / 1000) + left)
    for _, key in ipairs(KEYS) do
      call('PEXPIREAT', key, ends)
    end
  end
end

-- What was changed may have made keys: they go with the queue as well.
local function live_as_before(rules)
  local left = life_of(rules)
  if left then
    live_on(left)
  end
end
